"""What went wrong in a worker, as it is written down there and raised here."""

from __future__ import annotations

import pickle
import signal
import traceback
from dataclasses import dataclass
from typing import Any

from rl_core.errors import EnvError

__all__ = ["Failure", "WorkerError", "ended", "silent"]


class WorkerError(EnvError):
    """An environment in another process or thread failed; the batch it belongs to is closed.

    Attributes:
        env_index: the environment's place in the batch; None where a process ended with several of them in it.
        phase: what was being done: "start", "construction", "reset", "step", "call" or "close".
        traceback: that of the worker, as text.
        exitcode: of a process that ended by itself; negative numbers are signals.
    """

    def __init__(
        self, text: str, *, env_index: int | None, phase: str, traceback: str = "", exitcode: int | None = None
    ) -> None:
        super().__init__(text)
        self.env_index, self.phase, self.traceback, self.exitcode = env_index, phase, traceback, exitcode

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (str(self), self.env_index, self.phase, self.traceback, self.exitcode)


def _rebuilt(text: str, env_index: int | None, phase: str, trace: str, exitcode: int | None) -> WorkerError:
    return WorkerError(text, env_index=env_index, phase=phase, traceback=trace, exitcode=exitcode)


@dataclass(frozen=True)
class Failure:
    """An exception on its way to another process.

    Attributes:
        index: the environment's place in the batch.
        phase: what was being done.
        summary: the exception's type and text.
        traceback: as text.
        pickled: the exception itself, where it can be pickled.
    """

    index: int
    phase: str
    summary: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException, index: int, phase: str) -> Failure:
        """Write an exception down."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # whatever an exception's own pickling raises: its text is enough
            pickled = None
        return cls(index, phase, _summary(error), trace, pickled)

    def error(self, batch: str, detail: str = "") -> WorkerError:
        """The error to raise, caused by the exception itself where that could travel."""
        text = f"environment {self.index} of {batch} failed in {self.phase}: {self.summary}{detail}"
        error = WorkerError(
            f"{text}\n\nIn the worker:\n{self.traceback}",
            env_index=self.index,
            phase=self.phase,
            traceback=self.traceback,
        )
        if self.pickled is not None:
            try:
                error.__cause__ = pickle.loads(self.pickled)
            except Exception:  # its class may not exist here
                error.__cause__ = None
        return error


def _summary(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # a broken __str__
        return type(error).__name__


def ended(batch: str, worker: int, envs: range, phase: str, exitcode: int | None, said: str = "") -> WorkerError:
    """A worker process is gone."""
    if exitcode is None:
        how = "closed its line"
    elif exitcode < 0:
        how = f"was killed by {_signal_name(-exitcode)}"
    else:
        how = f"ended with exit code {exitcode}"
    index = envs.start if len(envs) == 1 else None
    return WorkerError(
        f"worker {worker} of {batch} ({_named(envs)}) {how} in {phase}{said}; what it printed stands above",
        env_index=index,
        phase=phase,
        exitcode=exitcode,
    )


def silent(batch: str, worker: int, envs: range, phase: str, seconds: float) -> WorkerError:
    """A worker process does not answer in time."""
    return WorkerError(
        f"worker {worker} of {batch} ({_named(envs)}) did not finish its {phase} within {seconds:g} s and was killed; "
        "a larger timeout=... gives it longer",
        env_index=envs.start if len(envs) == 1 else None,
        phase=phase,
    )


def _named(envs: range) -> str:
    if len(envs) == 1:
        return f"environment {envs.start}"
    return f"environments {envs.start} to {envs.stop - 1}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
