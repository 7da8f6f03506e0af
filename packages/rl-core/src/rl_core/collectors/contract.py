"""``BaseCollector``: something that yields batches of experience."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase

__all__ = ["BaseCollector"]


class BaseCollector(ABC):
    """Yields TensorDicts ``[*B, T]`` of steps, the last dimension named "time".

    Contract:
        - a batch holds ``frames_per_batch`` frames (environment steps); every batch says its own number by its shape;
        - episodes go on from one batch to the next;
        - ``("collector", "traj_ids")``, int64 ``[*B, T]``, numbers the trajectories in the order in which they start;
        - ``("next", observation)`` is the true last observation where an episode ended, and ``done = terminated |
          truncated``;
        - a yielded batch is the reader's: the collector never writes into it again;
        - a collector closes what it made, never an environment that it was given.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[TensorDictBase]:
        """Collect until ``total_frames``."""

    @abstractmethod
    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Give the acting copy of the policy the trained weights."""

    @abstractmethod
    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments; returns the next seed of the chain."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop workers and close what this collector made; calling it twice is harmless."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on: counters, trajectory ids, the environments' transforms, the policy."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""

    def __enter__(self) -> BaseCollector:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
