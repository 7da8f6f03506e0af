"""``RayChannel``: how new weights reach an actor, and how its word comes back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rl_collectors.process.memory import SharedMemory
from rl_collectors.ray.library import ray
from rl_collectors.ray.pool import RayPool
from rl_collectors.ray.telling import hang
from rl_core.errors import CollectorError

__all__ = ["RayChannel"]

_RESTART_SECONDS = 120.0


class RayChannel:
    """A :class:`~rl_collectors.weights.scheme.WeightChannel` to one actor.

    Args:
        pool: the actors.
        worker: which.
    """

    def __init__(self, pool: RayPool, worker: int) -> None:
        self.pool, self.member = pool, pool.members[worker]
        self._before: dict[str, tuple[int, Sequence[Any]] | None] = {}

    def post(self, model_id: str, version: int, parts: Sequence[Any]) -> None:
        """Ask the actor to take weights before its next policy call."""
        if any(isinstance(part, SharedMemory) for part in parts):
            raise CollectorError(
                "SharedMemWeightSyncScheme needs memory that workers share, which Ray actors do not; leave "
                "weight_sync_schemes out, or pass RayWeightSyncScheme()"
            )
        member = self.member
        with self.pool.lock:
            self.pool.check_open()
            self._before[model_id] = member.weights.get(model_id)
            member.weights[model_id] = (version, parts)
            ref = member.handle.take_weights.remote(model_id, version, *parts)
            member.answers[model_id, version] = (member.generation, ref)

    def wait(self, model_id: str, version: int, deadline: float) -> None:
        """Wait until the actor says that it acts with a version, in a new life if need be."""
        member, pool = self.member, self.pool
        while True:
            with pool.lock:
                pool.check_open()
                generation, ref = member.answers[model_id, version]
            left = deadline - time.monotonic()
            if left <= 0:
                raise pool.fail(_late(member.index, model_id, version, hang(member, pool.timeout)))
            ready, _ = ray.wait([ref], timeout=min(left, 1.0))
            if not ready:
                continue
            try:
                kind, failure = ray.get(ref)
            except ray.exceptions.RayError as error:
                pool.bury(member, generation, error)
                deadline = max(deadline, time.monotonic() + _RESTART_SECONDS)
                continue
            del member.answers[model_id, version]
            if kind == "refused":
                self._take_back(model_id)
                raise failure.error()
            return

    def _take_back(self, model_id: str) -> None:
        """Weights that were refused are not those that a new actor gets."""
        before = self._before.pop(model_id, None)
        if before is None:
            del self.member.weights[model_id]
        else:
            self.member.weights[model_id] = before


def _late(worker: int, model_id: str, version: int, where: CollectorError) -> CollectorError:
    return CollectorError(f"worker {worker} did not take version {version} of {model_id!r} in time. {where}")
