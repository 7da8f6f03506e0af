"""``NestedWorker``: a worker that has worker processes of its own, on the machine that its actor runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_collectors.process.multi_sync import MultiSyncCollector
from rl_collectors.process.pool import WorkerPool
from rl_collectors.process.settings import EnvFacts, WorkerSettings
from rl_collectors.process.worker import Gathered, Order, Store
from rl_collectors.weights.shared_memory import SharedMemWeightSyncScheme

__all__ = ["NestedWorker"]


class NestedWorker:
    """Does what a :class:`~rl_collectors.process.worker.CollectorWorker` does, by a :class:`MultiSyncCollector`.

    Its batches are ``[M, *B, T]``; it takes weights between two of them.

    Args:
        settings: what each of its processes is made from.
        workers: M, their number.
        timeout: seconds without progress after which one of them counts as hanging.
    """

    def __init__(self, settings: WorkerSettings, workers: int, timeout: float) -> None:
        kwargs = dict(settings.collector_kwargs)
        self.version = 0
        self.collector = MultiSyncCollector(
            [settings.create_env_fn] * workers,
            settings.policy,
            policy_factory=settings.policy_factory,
            collector_class=settings.collector_class,
            track_traj_ids=False,
            init_fn=settings.init_fn,
            num_sub_threads=settings.num_threads,
            weight_sync_schemes={
                model_id: SharedMemWeightSyncScheme(timeout=timeout) for model_id in settings.receivers
            },
            timeout=timeout,
            **kwargs,
        )
        self.collector.set_seed(settings.seed)

    @property
    def facts(self) -> EnvFacts:
        """What the owner must know."""
        inner = self.collector.env_facts
        return EnvFacts(torch.Size([self.collector.num_workers, *inner.batch_size]), inner.end_groups, inner.name)

    @property
    def progress(self) -> int:
        """Moves with every policy call of its processes."""
        pool = self.collector.pool
        assert isinstance(pool, WorkerPool)
        return sum(member.control.progress for member in pool.members)

    def gather(self, order: Order, store: Store) -> Gathered:
        """Collect a batch."""
        collector = self.collector
        if order.reset:
            collector.reset()
        collector.init_random_frames = collector.frames + 1 if order.random else 0
        store(collector._batch(order.steps), 0, order.steps)
        return Gathered(order, order.steps, [(0, self.version)])

    def take_weights(self, model_id: str, version: int, weights: Mapping[str, Tensor]) -> None:
        """Send new weights to its processes."""
        self.collector.update_policy_weights_(weights, model_id=model_id)
        if model_id == "policy":
            self.version = version

    def set_seed(self, seed: int) -> None:
        """Seed its processes, each with a stream of its own."""
        self.collector.set_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """The processes' states."""
        return {"collector": self.collector.state_dict(), "version": self.version}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        self.collector.load_state_dict(state_dict["collector"])
        self.version = int(state_dict["version"])

    def close(self) -> None:
        """End the processes."""
        self.collector.shutdown()
