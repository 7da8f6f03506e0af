"""A critic that predicts normalised values, seen through its normaliser: it writes raw values."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import nn

from rl_core.keys import Key, as_key
from rl_marl.value_norm import ValueNorm

__all__ = ["DenormalizedCritic"]


class DenormalizedCritic(nn.Module):
    """The critic as a value estimator needs it: the same inputs, the value in raw units.

    Args:
        critic: a module with ``in_keys`` and ``out_keys`` that writes normalised values.
        value_norm: their statistics.
        value_key: the entry to bring back to raw units.
    """

    def __init__(self, critic: nn.Module, value_norm: ValueNorm, value_key: Key) -> None:
        super().__init__()
        self.critic = critic
        self.value_norm = value_norm
        self.value_key = value_key

    @property
    def in_keys(self) -> list[Key]:
        """The critic's."""
        return [as_key(key) for key in self.critic.in_keys]  # type: ignore[union-attr]

    @property
    def out_keys(self) -> list[Key]:
        """The critic's."""
        return [as_key(key) for key in self.critic.out_keys]  # type: ignore[union-attr]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the critic's outputs, the value in raw units."""
        written: TensorDictBase = self.critic(tensordict)
        return written.set(self.value_key, self.value_norm.denormalize(written.get(self.value_key)))
