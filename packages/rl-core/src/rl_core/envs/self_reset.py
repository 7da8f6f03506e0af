"""Simulators that reset themselves: what they return at an end is the first observation of the next episode.

The last observation is lost; ``("next", observation)`` says so with NaN (-1 for integers, False for flags) instead of
passing the wrong one on, and the one returned is kept for the reset that follows.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.keys import Key

__all__ = ["SelfResets"]


class SelfResets:
    """The first observations that a self-resetting simulator has already given.

    Args:
        observation_keys: the entries that hold observations.
    """

    def __init__(self, observation_keys: list[Key]) -> None:
        self.observation_keys = observation_keys
        self.rows: Tensor | None = None
        self._first: TensorDictBase | None = None

    def hold_back(self, result: TensorDictBase, rows: Tensor | None) -> None:
        """Take the first observations out of a step's result; what stands there afterwards is no observation.

        Args:
            result: what a step wrote; its observations are replaced in the rows that ended.
            rows: bool ``[*B]``, the rows that ended, or None.
        """
        self.rows = rows
        if rows is None:
            return
        self._first = result.select(*self.observation_keys)
        for key in self.observation_keys:
            value = result.get(key)
            if isinstance(value, Tensor):
                mask = rows.reshape(*rows.shape, *(1,) * (value.ndim - rows.ndim))
                result.set(key, value.masked_fill(mask, _lost(value.dtype)))

    def give(self, rows: Tensor | None) -> TensorDictBase | None:
        """The first observations for a reset of some rows (None: all), or None where they were not given."""
        if self.rows is None or self._first is None:
            return None
        if rows is None and not bool(self.rows.all()):
            return None
        if rows is not None and bool((rows & ~self.rows).any()):
            return None
        return TensorDict(dict(self._first.items()), batch_size=self._first.batch_size, device=self._first.device)


def _lost(dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return False
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return torch.iinfo(dtype).max if dtype is torch.uint8 else -1
