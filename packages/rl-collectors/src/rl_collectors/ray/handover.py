"""Batches that an actor hands to a buffer itself, so that they never pass through the process that trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase

from rl_collectors.delivery import Delivery
from rl_collectors.process.worker import Gathered
from rl_collectors.trajectories import TrajectoryCounter
from rl_core.envs.base import EnvBase
from rl_core.envs.rollout import mark_truncated
from rl_core.keys import join

__all__ = ["CountingDelivery", "Handover", "HandoverSettings", "RemoteBuffer"]


@runtime_checkable
class RemoteBuffer(Protocol):
    """A buffer that lives elsewhere: pickled, it is another client of the same buffer, as ``RayReplayBuffer`` is."""

    def extend(self, data: Any) -> Any:
        """Store many rows."""
        ...

    def client(self) -> Any:
        """Another client of the same buffer."""
        ...


@dataclass(frozen=True)
class HandoverSettings:
    """What an actor needs for it.

    Attributes:
        buffer: gets the batches.
        delivery: further arguments of :class:`~rl_collectors.delivery.Delivery`.
        workers: how many actors there are; worker i of N gives the trajectory ids i, i + N, i + 2 N, ...
        track_traj_ids: write them.
        track_policy_version: write the version of the weights at each step.
        set_truncated: mark each batch's last step as truncated where its episode goes on.
    """

    buffer: RemoteBuffer
    delivery: dict[str, Any]
    workers: int
    track_traj_ids: bool
    track_policy_version: bool
    set_truncated: bool


class Handover:
    """The actor's side.

    Args:
        settings: what to do.
        worker: its index.
        env: for its end flags (an environment, or what is known of one).
        first_id: the count at which trajectory ids go on.
    """

    def __init__(self, settings: HandoverSettings, worker: int, env: Any, first_id: int = 0) -> None:
        self.settings, self.worker, self.env = settings, worker, env
        self.done_key = env.end_groups[0].done
        self.delivery = Delivery(replay_buffer=settings.buffer, tracked=settings.track_traj_ids, **settings.delivery)
        self.delivery.follow(self.done_key)
        self.counter = TrajectoryCounter(env.batch_size.numel())
        self.counter.ids.next_id = first_id

    def give(self, batch: TensorDictBase, gathered: Gathered) -> None:
        """Complete a batch and extend the buffer with it."""
        if self.settings.track_traj_ids:
            if gathered.order.reset:
                self.counter.restart()
            done = batch.get(join("next", self.done_key))
            flat = done.reshape(*batch.shape, -1).any(-1).reshape(-1, batch.shape[-1])
            ids = self.counter.number(flat) * self.settings.workers + self.worker
            batch.set(("collector", "traj_ids"), ids.reshape(batch.shape).to(done.device))
        if self.settings.track_policy_version:
            versions = torch.empty(batch.shape, dtype=torch.int64, device=batch.device)
            for start, version in gathered.versions:
                versions[..., start:] = version
            batch.set("policy_version", versions)
        if self.settings.set_truncated:
            mark_truncated(batch, _as_env(self.env))
        for _ in self.delivery.give(batch):
            pass


def _as_env(facts: Any) -> EnvBase:
    """What is known of an environment, where only its end flags are asked for."""
    env: EnvBase = facts
    return env


class CountingDelivery(Delivery):
    """The owner's side: there is nothing to deliver, each batch was handed over already."""

    def give(self, batch: TensorDictBase) -> Iterator[TensorDictBase | None]:
        """None, for each batch."""
        yield None

    def finish(self) -> Iterator[TensorDictBase | None]:
        """Nothing."""
        yield from ()
