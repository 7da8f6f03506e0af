"""The two ways of collecting, synchronous or not, with actors in the place of worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase

from rl_collectors.process.assembly import Piece
from rl_collectors.process.crew import Crew
from rl_collectors.process.multi import MultiCollector
from rl_collectors.process.multi_async import MultiAsyncCollector
from rl_collectors.process.multi_sync import MultiSyncCollector
from rl_collectors.process.settings import WorkerSettings
from rl_collectors.ray.channel import RayChannel
from rl_collectors.ray.handover import CountingDelivery
from rl_collectors.ray.hire import Hire
from rl_collectors.ray.pool import RayPool
from rl_collectors.ray.weights import RayWeightSyncScheme
from rl_collectors.weights.models import WeightUpdate
from rl_collectors.weights.scheme import WeightChannel, WeightSyncScheme
from rl_core.errors import CollectorError

__all__ = ["AsyncOnRay", "SyncOnRay"]


class _OnRay(MultiCollector):
    """What both have: actors, and updates of weights that follow batches.

    Args:
        create_env_fn: one function for each actor.
        policy: what acts.
        hire: on which terms actors work.
        update_after: send weights to the workers whose batch the reader had last.
        max_update_interval: so many batches at most are collected between two updates of a worker; -1: any number.
        **kwargs: of the collector with worker processes.
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any,
        *,
        hire: Hire,
        update_after: bool,
        max_update_interval: int,
        **kwargs: Any,
    ) -> None:
        self._terms = hire
        self._update_after, self._max_interval = update_after, max_update_interval
        self._had_last: tuple[int, ...] = ()
        super().__init__(create_env_fn, policy, **kwargs)
        self._batches_since = [0] * self.num_workers
        if hire.handover is not None:
            self.delivery = CountingDelivery(replay_buffer=hire.handover.buffer)

    @property
    def actors(self) -> RayPool:
        """The pool of actors."""
        assert isinstance(self.pool, RayPool)
        return self.pool

    def _default_scheme(self, timeout: float) -> WeightSyncScheme:
        return RayWeightSyncScheme(timeout=timeout)

    def _hired(
        self, settings: Sequence[WorkerSettings], mp_start_method: str | None, timeout: float
    ) -> tuple[Crew, Sequence[WeightChannel]]:
        pool = RayPool(settings, self._terms, timeout)
        return pool, [RayChannel(pool, index) for index in range(len(settings))]

    def rollout(self) -> TensorDictBase:
        if self._terms.handover is not None:
            raise CollectorError(
                "rollout() gives a batch, but the actors hand theirs to the buffer; sample it, or pass a buffer that "
                "lives in this process"
            )
        return super().rollout()

    def _refresh(self) -> None:
        """Before a batch: the updates that are due."""
        due = set(self._had_last) if self._update_after else set()
        if self._max_interval > 0:
            due |= {worker for worker, count in enumerate(self._batches_since) if count >= self._max_interval}
        self._had_last = ()
        if due:
            self.update_policy_weights_(worker_ids=sorted(due))

    def _given(self, workers: tuple[int, ...]) -> None:
        self._had_last = workers
        self._batches_since = [count + 1 for count in self._batches_since]

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        super().update_policy_weights_(policy_or_weights, **kwargs)
        workers = WeightUpdate.of(policy_or_weights, **kwargs).worker_ids
        for worker in range(self.num_workers) if workers is None else workers:
            self._batches_since[worker] = 0

    def stats(self) -> dict[str, float]:
        return {**super().stats(), "restarts": self.actors.restarts, "frames_lost": self.actors.frames_lost}


class SyncOnRay(_OnRay, MultiSyncCollector):
    """Batches to which every actor contributes."""

    def _collect(self) -> TensorDictBase | None:
        self._refresh()
        return MultiSyncCollector._collect(self)

    def _joined(self, pieces: list[Piece]) -> TensorDictBase:
        self._given(tuple(range(self.num_workers)))
        return super()._joined(pieces)


class AsyncOnRay(_OnRay, MultiAsyncCollector):
    """Batches of one actor each, in the order in which they are finished."""

    def __init__(self, create_env_fn: Any, policy: Any, **kwargs: Any) -> None:
        self._owners: deque[int] = deque()  # of the batches that are held
        super().__init__(create_env_fn, policy, **kwargs)

    def _collect(self) -> TensorDictBase | None:
        self._refresh()
        batch = MultiAsyncCollector._collect(self)
        if batch is not None:
            self._given((self._owners.popleft(),) if self._owners else ())
        return batch

    def _own(self, piece: Piece) -> TensorDictBase:
        self._owners.append(piece.worker)
        return super()._own(piece)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._owners.clear()  # a checkpoint does not say whose the batches are that it holds
