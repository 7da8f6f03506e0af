"""What the recipes with a replay buffer share: their options, the buffer, and which entries of a batch go into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_core import registry
from rl_trainers.recipes.single_agent import SingleAgentRecipe

__all__ = ["ReplayRecipe", "total_loss"]


@dataclass(frozen=True, kw_only=True)
class ReplayRecipe(SingleAgentRecipe):
    """The base of recipes that learn from a buffer of past steps: collect a few frames, then make a few updates."""

    frames_per_batch: int = 64
    """Environment steps between two rounds of updates, over all environments."""
    updates_per_batch: int = 64
    """Optimiser steps in a round."""
    minibatch_size: int = 256
    """Steps in one optimiser step."""
    buffer_size: int = 100_000
    """Steps kept for replay."""
    warmup_frames: int = 1_000
    """Steps with random actions before learning begins."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    gamma: float = 0.99
    """Discount per step."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""
    n_step: int = 1
    """Rewards in a target before the value that stands for the rest."""
    prioritized: bool = False
    """Whether steps are drawn by their last error instead of uniformly."""
    priority_alpha: float = 0.6
    """Exponent of priorities; 0 draws uniformly."""
    priority_beta: float = 0.4
    """Exponent of the weights that correct for it, at the start; it grows linearly to 1."""

    def make_buffer(self) -> Any:
        """The replay buffer: uniform or prioritised, of single steps or of n-step transitions."""
        lanes = 2 if self.n_step > 1 else 1  # n steps of one environment must lie one after the other
        options: dict[str, Any] = {
            "storage": registry.storages.get("lazy_tensor")(self.buffer_size, ndim=lanes),
            "batch_size": self.minibatch_size,
        }
        if self.n_step > 1:
            options["transform"] = registry.transforms.get("multi_step")(self.n_step, self.gamma)
        if self.prioritized:
            make = registry.buffers.get("tensordict_prioritized_replay")
            return make(alpha=self.priority_alpha, beta=self.priority_beta, **options)
        return registry.buffers.get("tensordict_replay")(**options)

    def store(self, buffer: Any, batch: TensorDictBase, observation_keys: Sequence[Any]) -> None:
        """Put a batch [N, T] into the buffer: what losses read, and nothing else."""
        ends = [("next", name) for name in ("reward", "done", "terminated")]
        steps = batch.select(*observation_keys, "action", *(("next", key) for key in observation_keys), *ends)
        buffer.extend(steps if self.n_step > 1 else steps.reshape(-1))

    def anneal_beta(self, buffer: Any, frames: int) -> None:
        """Let the correction for prioritised draws grow with the frames done."""
        if self.prioritized:
            buffer.sampler.beta = self.priority_beta + (1 - self.priority_beta) * min(1.0, frames / self.frames)


def total_loss(values: Mapping[str, Tensor]) -> Tensor:
    """The sum of the losses, whose names begin with "loss_", among losses and logs."""
    first, *others = (value for name, value in values.items() if name.startswith("loss_"))
    for value in others:
        first = first + value
    return first
