"""``SignTransform`` and ``BinarizeReward``: what is left of a number is its sign."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from rl_core import Binary, Bounded, TensorSpec
from rl_core.keys import Key
from rl_envs.transforms.entry_map import EntryMap

__all__ = ["BinarizeReward", "SignTransform"]


class SignTransform(EntryMap):
    """-1, 0 or 1.

    (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Methods: rewards of Atari games.)

    Args:
        in_keys: rewards or observations; default ``["reward"]`` unless there are ``in_keys_inv``.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: entries that the environment reads, and that get the sign of what the policy wrote.
        out_keys_inv: what the policy writes for them; default: the same keys.

    Example:
        >>> SignTransform()._apply_transform(torch.tensor([-2.5, 0.0, 7.0]))
        tensor([-1.,  0.,  1.])
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        default = ["reward"] if in_keys_inv is None else []
        super().__init__(default if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.sign()

    _inv_apply_transform = _apply_transform

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        return Bounded(low=-1, high=1, shape=leaf.shape, dtype=leaf.dtype, device=leaf.device)

    def _write(self, source: np.ndarray, target: np.ndarray) -> None:
        np.sign(source, target)

    _write_back = _write


class BinarizeReward(EntryMap):
    """1 where the reward is positive, else 0, as int8.

    Args:
        in_keys: rewards; default ``["reward"]``.
        out_keys: where to write them; default: the same keys.

    Example:
        >>> BinarizeReward()._apply_transform(torch.tensor([-2.5, 0.0, 7.0]))
        tensor([0, 0, 1], dtype=torch.int8)
    """

    def __init__(self, in_keys: Key | Iterable[Key] | None = None, out_keys: Key | Iterable[Key] | None = None) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return (value > 0).to(torch.int8)

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        return Binary(shape=leaf.shape, dtype=torch.int8, device=leaf.device)

    def _write(self, source: np.ndarray, target: np.ndarray) -> None:
        np.greater(source, 0, out=target, casting="unsafe")
