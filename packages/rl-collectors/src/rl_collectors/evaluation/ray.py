"""Evaluations in a Ray actor, on this machine or on another one."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping
from typing import Any

import torch

from rl_collectors.background import StoppedError
from rl_collectors.evaluation.failures import failed
from rl_collectors.evaluation.serving import BUILDING
from rl_collectors.evaluation.settings import EvaluationSettings, Job
from rl_collectors.evaluation.worker import EvaluationWorker
from rl_collectors.process.failure import Failure
from rl_collectors.ray.cluster import in_bytes, start_ray
from rl_collectors.ray.library import ray
from rl_core.errors import CollectorError
from rl_core.training.seeding import seed_everything

__all__ = ["EvaluationActor", "RayRunner"]


class EvaluationActor:
    """The actor's side."""

    def __init__(self) -> None:
        self.worker: EvaluationWorker | None = None

    def begin(self, settings: bytes) -> tuple[str, Any]:
        """Make the environment and the policy."""
        try:
            given: EvaluationSettings = pickle.loads(settings)
            torch.set_num_threads(given.num_threads)
            seed_everything(given.draws)
            self.worker = EvaluationWorker(given)
        except Exception as error:  # it travels to the owner, who raises it
            return "failed", Failure.of(error, 0, BUILDING)
        return "ready", None

    def run(self, job: bytes) -> tuple[str, Any]:
        """Evaluate."""
        wanted: Job = pickle.loads(job)
        try:
            assert self.worker is not None
            return "done", self.worker.run(wanted, lambda: False)
        except Exception as error:  # it travels to the owner, who raises it
            return "failed", Failure.of(error, 0, wanted.name)

    def close(self) -> None:
        """Close the environment."""
        if self.worker is not None:
            self.worker.close()


class RayRunner:
    """A :class:`~rl_collectors.evaluation.settings.Runner` in an actor that starts with it.

    Args:
        settings: of the evaluations.
        ray_init_config: arguments of ``ray.init``; None: Ray runs already, or is started on this machine.
        options: of the actor.
    """

    def __init__(
        self, settings: EvaluationSettings, ray_init_config: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> None:
        payload = in_bytes(settings, "the evaluator's settings")
        self._started_ray = start_ray(ray_init_config)
        self._stopped = self._idle = self._ready = False
        remote: Any = ray.remote(EvaluationActor)
        self.actor: Any = remote.options(**options).remote()
        self._begun: Any = self.actor.begin.remote(payload)

    def run(self, job: Job) -> dict[str, float]:
        """Evaluate there, and wait for it."""
        if not self._ready:
            self._reply(self._begun, BUILDING)
            self._ready = True
        self._idle = False
        result: dict[str, float] = self._reply(self.actor.run.remote(pickle.dumps(job)), job.name)
        self._idle = True
        return result

    def _reply(self, reference: Any, phase: str) -> Any:
        try:
            kind, said = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            if self._stopped:
                raise StoppedError("the evaluator was shut down during an evaluation") from error
            raise CollectorError(
                f"the evaluator's Ray actor died during {phase}: {_first_line(error)}. Construct a new evaluator"
            ) from error
        if kind == "failed":
            raise failed(said)
        return said

    def stop(self) -> None:
        """End the actor; one that is idle closes its environment first."""
        if self._stopped or not ray.is_initialized():
            return
        self._stopped = True
        if self._idle:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):  # gone, or hanging: ended all the same
                ray.get(self.actor.close.remote(), timeout=5.0)
        ray.kill(self.actor)

    def close(self) -> None:
        """End the actor, and Ray where it was started here."""
        self.stop()
        if self._started_ray and ray.is_initialized():
            self._started_ray = False
            ray.shutdown()


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
