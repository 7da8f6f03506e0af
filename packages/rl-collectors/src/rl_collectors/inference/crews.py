"""Workers that step environments of their own under one served policy: in processes, and what all kinds have alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDictBase

from rl_collectors.inference.client import PolicyClient
from rl_collectors.process.multi_sync import MultiSyncCollector
from rl_collectors.process.settings import EnvFacts
from rl_collectors.serial import Collector
from rl_core.envs.base import EnvBase

__all__ = ["EnvCrew", "ProcessCrew", "ServedCollector"]


class EnvCrew(Protocol):
    """Workers, numbered from 0."""

    @property
    def facts(self) -> EnvFacts:
        """What their environments are."""
        ...

    def gather(self, steps: int, random: bool, reset: Sequence[int]) -> TensorDictBase:
        """Bare steps ``[N, *B, T]``; workers in ``reset`` start new episodes first."""
        ...

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed each worker's environment."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Each worker's state."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> list[int]:
        """Take a :meth:`state_dict` back; returns the workers whose environments could not, and started anew."""
        ...

    def stop(self, timeout: float) -> None:
        """End them; environments are closed."""
        ...


class ServedCollector(Collector):
    """What steps in a worker: its policy is a client, which is called on bare tensors where the environment has rows.

    Its exploration type is the worker's own: other threads explore at the same time.
    """

    @property
    def is_running(self) -> bool:
        """True: there is always somebody beside it."""
        return True

    def _fitted(self, env: EnvBase, max_frames_per_traj: int | None) -> EnvBase:
        env = super()._fitted(env, max_frames_per_traj)
        if isinstance(self.policy, PolicyClient):
            self.policy = self.policy.on_tensors(len(env.batch_size))
        return env


class ProcessCrew(MultiSyncCollector):
    """Workers in processes; batches lie in shared memory until they are joined.

    Args:
        create_env_fn: makers, one for each worker.
        policy: the client, or None for random actions.
        **kwargs: of :class:`~rl_collectors.MultiSyncCollector`.
    """

    def __init__(self, create_env_fn: Any, policy: PolicyClient | None, **kwargs: Any) -> None:
        super().__init__(create_env_fn, policy, collector_class=ServedCollector, track_traj_ids=False, **kwargs)

    @property
    def facts(self) -> EnvFacts:
        """What the environments are."""
        return self.env_facts

    def gather(self, steps: int, random: bool, reset: Sequence[int]) -> TensorDictBase:
        """Bare steps ``[N, *B, T]``."""
        self.init_random_frames = self.frames + 1 if random else 0
        if reset:
            self.reset(reset)
        return self._batch(steps)

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed each worker."""
        for worker, own in enumerate(seeds):
            self.pool.send(worker, "seed", own, phase="seeding")
        for worker in range(self.num_workers):
            self.pool.receive([worker])

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> list[int]:  # type: ignore[override]
        """Take a state back."""
        super().load_state_dict(dict(state_dict))
        return []

    def stop(self, timeout: float) -> None:
        """End the processes."""
        self.shutdown(timeout)


def joined(batches: Sequence[TensorDictBase]) -> TensorDictBase:
    """Workers' batches ``[*B, T]`` as one ``[N, *B, T]``."""
    whole: TensorDictBase = torch.stack(list(batches))  # type: ignore[assignment]
    whole.names = [*([None] * (whole.ndim - 1)), "time"]
    return whole
