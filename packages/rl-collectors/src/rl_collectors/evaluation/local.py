"""Evaluations in this process, in whichever thread calls."""

from __future__ import annotations

import threading

from rl_collectors.evaluation.random_state import kept_random_state, moves_torch
from rl_collectors.evaluation.settings import EvaluationSettings, Job
from rl_collectors.evaluation.worker import EvaluationWorker
from rl_core.errors import CollectorError

__all__ = ["LocalRunner"]


class LocalRunner:
    """A :class:`~rl_collectors.evaluation.settings.Runner` in this process; made in the thread that trains.

    Args:
        settings: of the evaluations.
    """

    def __init__(self, settings: EvaluationSettings) -> None:
        self._stop = threading.Event()
        with kept_random_state():
            self.worker = EvaluationWorker(settings)
            if settings.place == "thread" and settings.seed is not None:
                self._check_seeding(settings.seed)

    def _check_seeding(self, seed: int) -> None:
        """In a thread the environment must not seed what the trainer draws from."""
        moved: list[bool] = []
        with moves_torch(moved):
            self.worker.env.set_seed(seed)
        if moved[0]:
            self.worker.close()
            raise CollectorError(
                f"{type(self.worker.env.base_env).__name__} seeds torch's global generator, which a thread shares with "
                "the training; use backend='process' or 'sync', or leave seed= out"
            )

    def run(self, job: Job) -> dict[str, float]:
        """Evaluate, in the caller's thread."""
        return self.worker.run(job, self._stop.is_set)

    def stop(self) -> None:
        """Have an evaluation in another thread give up before its next step."""
        self._stop.set()

    def close(self) -> None:
        """Close the environment, if it was made here."""
        self.worker.close()
