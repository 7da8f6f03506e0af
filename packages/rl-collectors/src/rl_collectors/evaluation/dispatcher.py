"""``Dispatcher``: a thread that sees to evaluations one after the other while the caller trains."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from rl_collectors.background import StoppedError
from rl_collectors.evaluation.failures import failed
from rl_collectors.evaluation.settings import Job, Runner
from rl_collectors.process.failure import Failure
from rl_core.errors import CollectorError

__all__ = ["Dispatcher", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """How an evaluation ended.

    Attributes:
        job: which.
        result: its numbers; None where it failed.
        error: what to raise then.
    """

    job: Job
    result: dict[str, float] | None
    error: BaseException | None = None


class Dispatcher:
    """Jobs in, outcomes out, in order.

    Args:
        runner: does the work.
        name: of the thread.
    """

    def __init__(self, runner: Runner, name: str) -> None:
        self.runner = runner
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._at_work = self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way, or waits."""
        with self._changed:
            return self._at_work or bool(self._jobs)

    def submit(self, job: Job) -> None:
        """Hand in an evaluation."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def outcomes(self) -> list[Outcome]:
        """Those that have come since the last call."""
        with self._changed:
            found = list(self._outcomes)
            self._outcomes.clear()
            return found

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for an outcome, or until there is nothing to wait for; False where the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._outcomes) or not (self._at_work or self._jobs), timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Give up what is under way or waits, and end the thread; False where it does not end in time."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._jobs.clear()
                self._changed.notify_all()
        self.runner.stop()
        if self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._jobs or self._closed)
                    if self._closed:
                        return
                    job, self._at_work = self._jobs.popleft(), True
                outcome = self._outcome(job)
                with self._changed:
                    self._at_work = False
                    if outcome is not None:
                        self._outcomes.append(outcome)
                    self._changed.notify_all()
        finally:
            self.runner.close()

    def _outcome(self, job: Job) -> Outcome | None:
        try:
            return Outcome(job, self.runner.run(job))
        except StoppedError:
            return None
        except CollectorError as error:
            return Outcome(job, None, error)
        except BaseException as error:  # it is raised where the caller asks for the result
            told = failed(Failure.of(error, 0, job.name))
            told.__cause__ = error
            return Outcome(job, None, told)
