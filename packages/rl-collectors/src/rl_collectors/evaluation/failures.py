"""What is said about an evaluation that failed, or whose process is gone."""

from __future__ import annotations

import pickle
import signal

from rl_collectors.process.failure import Failure
from rl_core.errors import CollectorError

__all__ = ["died", "failed"]


def failed(failure: Failure) -> CollectorError:
    """The error about an exception, with its traceback; its cause is the exception where that could be kept."""
    told = CollectorError(f"{failure.phase} failed: {failure.summary}\n\nIts traceback:\n{failure.trace}")
    if failure.pickled is not None:
        told.__cause__ = pickle.loads(failure.pickled)
    return told


def died(phase: str, exitcode: int | None) -> CollectorError:
    """The error about a process that is gone without a word."""
    how = f"exit code {exitcode}"
    if exitcode is not None and exitcode < 0:
        known = {int(number): number.name for number in signal.Signals}
        how = f"killed by {known.get(-exitcode, f'signal {-exitcode}')}"
        if -exitcode == signal.SIGKILL:
            how += ", as the system does when memory runs out"
    return CollectorError(
        f"the evaluator's process died during {phase} ({how}); its last words are on stderr. Construct a new evaluator"
    )
