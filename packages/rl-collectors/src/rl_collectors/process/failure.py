"""What went wrong in a worker: its exception, its traceback and what it was doing, in a form that always travels."""

from __future__ import annotations

import pickle
import signal
import traceback
from dataclasses import dataclass

from rl_core.errors import CollectorError

__all__ = ["Failure", "death", "pickled_exception"]


@dataclass(frozen=True)
class Failure:
    """An exception in a worker.

    Attributes:
        worker: its index.
        phase: what it was doing.
        summary: the exception's type and text.
        trace: its traceback there.
        pickled: the exception, or None where it cannot be sent.
    """

    worker: int
    phase: str
    summary: str
    trace: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException, worker: int, phase: str) -> Failure:
        """The failure that an exception is."""
        summary = "".join(traceback.format_exception_only(type(error), error)).strip()
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
        return cls(worker, phase, summary, trace, pickled_exception(error))

    def error(self) -> CollectorError:
        """The error to raise; its cause is the worker's exception where that could be sent."""
        told = CollectorError(
            f"worker {self.worker} failed while {self.phase}: {self.summary}\n\nIts traceback:\n{self.trace}"
        )
        if self.pickled is not None:
            told.__cause__ = pickle.loads(self.pickled)
        return told


def pickled_exception(error: BaseException) -> bytes | None:
    """An exception that can be made again elsewhere, as bytes; None for the others."""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # whatever a foreign class raises while it is pickled: its text travels in any case
        return None
    return pickled


def death(worker: int, phase: str, exitcode: int | None) -> CollectorError:
    """The error about a worker that is gone without a word."""
    how = f"exit code {exitcode}"
    if exitcode is not None and exitcode < 0:
        try:
            how = f"killed by {signal.Signals(-exitcode).name}"
        except ValueError:
            how = f"killed by signal {-exitcode}"
        if -exitcode == signal.SIGKILL:
            how += ", as the system does when memory runs out"
    return CollectorError(f"worker {worker} died while {phase} ({how}); its last words are on stderr")
