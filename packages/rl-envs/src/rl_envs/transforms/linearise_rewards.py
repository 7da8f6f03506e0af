"""``LineariseRewards``: one reward from several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from rl_core import Bounded, TensorSpec, Unbounded
from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_envs.transforms.entry_map import EntryMap

__all__ = ["LineariseRewards"]


class LineariseRewards(EntryMap):
    """The weighted sum of a reward of several objectives: ``sum_i w_i r_i``, ``[*B, K] -> [*B, 1]``.

    Args:
        in_keys: the rewards.
        out_keys: where to write them; default: the same keys.
        weights: w, K numbers; default: ones.

    Example:
        >>> LineariseRewards(["reward"], weights=[1.0, 2.0])._apply_transform(torch.tensor([[1.0, 3.0], [2.0, 5.0]]))
        tensor([[ 7.],
                [12.]])
    """

    weights: Tensor | None

    def __init__(
        self,
        in_keys: Key | Iterable[Key],
        out_keys: Key | Iterable[Key] | None = None,
        *,
        weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        chosen = None if weights is None else torch.as_tensor(weights, dtype=torch.get_default_dtype())
        if chosen is not None and chosen.ndim != 1:
            raise ValueError(f"LineariseRewards needs one weight per objective, got weights of shape {chosen.shape}")
        self.register_buffer("weights", chosen)

    def _apply_transform(self, value: Tensor) -> Tensor:
        if self.weights is None:
            return value.sum(-1, keepdim=True)
        self._check(value.shape)
        weights = self.weights.to(value.device, value.dtype if value.is_floating_point() else None)
        return (value * weights).sum(-1, keepdim=True)

    def _check(self, shape: Sequence[int]) -> None:
        if self.weights is not None and shape[-1] != len(self.weights):
            raise SpecError(
                f"LineariseRewards has {len(self.weights)} weights; the reward has {shape[-1]} objectives (shape "
                f"{tuple(shape)}). Give one weight for each"
            )

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        self._check(leaf.shape)
        shape = (*leaf.shape[:-1], 1)
        dtype = self._apply_transform(torch.zeros(1, leaf.shape[-1], dtype=leaf.dtype)).dtype
        if not isinstance(leaf, Bounded):
            return Unbounded(shape=shape, dtype=dtype, device=leaf.device)
        ends = torch.stack([leaf.low.expand(leaf.shape), leaf.high.expand(leaf.shape)])
        weights = torch.ones(leaf.shape[-1]) if self.weights is None else self.weights
        reach = ends * weights.to(ends.device)
        low, high = (edge.sum(-1, keepdim=True).to(dtype) for edge in (reach.amin(0), reach.amax(0)))
        return Bounded(low=low, high=high, shape=shape, dtype=dtype, device=leaf.device)

    def _write(self, source: np.ndarray, target: np.ndarray) -> None:
        if self.weights is None:
            np.sum(source, axis=-1, keepdims=True, out=target)
        else:
            np.sum(source * self.weights.numpy(), axis=-1, keepdims=True, out=target)
