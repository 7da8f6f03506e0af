"""Transforms that only change the shape of entries: permute, flatten, unsqueeze, squeeze."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Composite, TensorSpec
from rl_core.keys import Key
from rl_envs.transforms.entry_transform import EntryTransform

__all__ = ["FlattenObservation", "PermuteTransform", "SqueezeTransform", "UnsqueezeTransform"]


class PermuteTransform(EntryTransform):
    """Permutes the last dimensions.

    Args:
        dims: negative dimensions, a permutation of ``-n .. -1``: the new order of the last n dimensions.
        in_keys: entries to permute.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: entries that the environment reads, permuted back.
        out_keys_inv: what the policy writes for them; default: the same keys.

    Example:
        >>> import torch
        >>> PermuteTransform([-1, -3, -2], in_keys=["pixels"])._apply_transform(torch.zeros(64, 48, 3)).shape
        torch.Size([3, 64, 48])
    """

    invertible = True

    def __init__(
        self,
        dims: Sequence[int],
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dims = list(dims)
        count = len(self.dims)
        if sorted(self.dims) != list(range(-count, 0)):
            raise ValueError(
                f"dims must be a permutation of the negative dimensions {list(range(-count, 0))}, got {self.dims}; "
                "they count from the end, since batch dimensions stand in front"
            )
        self._back = sorted(range(-count, 0), key=lambda dim: self.dims[dim + count])

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.permute(
            *range(value.ndim - len(self.dims)), *self.dims
        ).contiguous()  # rows may be permuted in place

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value.permute(*range(value.ndim - len(self.dims)), *self._back).contiguous()

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        return leaf.permute(*range(leaf.ndim - len(self.dims)), *(leaf.ndim + dim for dim in self.dims))


class _OneEntryTransform(EntryTransform):
    """Keeps track of batch dimensions, so that dimensions may be counted from the first of an entry's own."""

    _positive = False
    _lead = 0

    def _at(self, dim: int, ndim: int) -> int:
        """A dimension as a negative number; from 0 on it counts those after the batch."""
        return dim if dim < 0 else dim + self._lead - ndim

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._lead = tensordict.batch_dims
        return super()._call(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._lead = tensordict.batch_dims
        return super()._inv_call(tensordict)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The specs of the out keys."""
        self._lead = observation_spec.ndim
        return super().transform_observation_spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The specs of the out keys, where a reward is among the in keys."""
        self._lead = reward_spec.ndim
        return super().transform_reward_spec(reward_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """What the policy writes: the environment's entry as the map shows it."""
        self._lead = action_spec.ndim
        return super().transform_action_spec(action_spec)

    @property
    def supports_rows(self) -> bool:
        """True, unless a dimension is counted from the front."""
        return not self._positive


def _checked(dim: int, allowed: bool, name: str) -> int:
    if dim >= 0 and not allowed:
        raise ValueError(
            f"{name}={dim} counts from the front, where batch dimensions stand; count from the end (negative), or give "
            "allow_positive_dim=True to count the dimensions after the batch"
        )
    return dim


class FlattenObservation(_OneEntryTransform):
    """Makes one dimension of several.

    Args:
        first_dim: the first of them, negative.
        last_dim: the last of them, negative.
        in_keys: entries to flatten; default ``["pixels"]``.
        out_keys: where to write them; default: the same keys.
        allow_positive_dim: dimensions from 0 on count those after the batch.

    Example:
        >>> import torch
        >>> FlattenObservation(-3, -1)._apply_transform(torch.zeros(2, 4, 84, 84)).shape
        torch.Size([2, 28224])
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        allow_positive_dim: bool = False,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.first_dim = _checked(first_dim, allow_positive_dim, "first_dim")
        self.last_dim = _checked(last_dim, allow_positive_dim, "last_dim")
        self._positive = max(first_dim, last_dim) >= 0

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.flatten(self._at(self.first_dim, value.ndim), self._at(self.last_dim, value.ndim))

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        first = self._at(self.first_dim, leaf.ndim) + leaf.ndim
        last = self._at(self.last_dim, leaf.ndim) + leaf.ndim
        sizes = list(leaf.shape)
        return leaf.reshape(*sizes[:first], math.prod(sizes[first : last + 1]), *sizes[last + 1 :])


class UnsqueezeTransform(_OneEntryTransform):
    """Adds a dimension of size 1.

    Args:
        dim: where it stands afterwards, negative.
        allow_positive_dim: dimensions from 0 on count those after the batch.
        in_keys: entries.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: entries that the environment reads without that dimension.
        out_keys_inv: what the policy writes for them, with it; default: the same keys.

    Example:
        >>> import torch
        >>> UnsqueezeTransform(-1, in_keys=["observation"])._apply_transform(torch.zeros(2, 3)).shape
        torch.Size([2, 3, 1])
    """

    invertible = True

    def __init__(
        self,
        dim: int | None = None,
        *,
        allow_positive_dim: bool = False,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if dim is None:
            raise ValueError(f"{type(self).__name__} needs the dimension: {type(self).__name__}(-1, in_keys=[...])")
        self.dim = _checked(dim, allow_positive_dim, "dim")
        self._positive = dim >= 0

    def _added(self, ndim: int) -> int:
        """Where the dimension goes in an entry of so many dimensions that lacks it."""
        return self._at(self.dim, ndim + 1)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.unsqueeze(self._added(value.ndim))

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return _without(value, self._at(self.dim, value.ndim), type(self).__name__)

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        return leaf.unsqueeze(self._added(leaf.ndim) + leaf.ndim + 1)


class SqueezeTransform(UnsqueezeTransform):
    """Removes a dimension of size 1; :class:`UnsqueezeTransform` the other way round.

    Args:
        dim: the dimension, negative.
        allow_positive_dim: dimensions from 0 on count those after the batch.
        in_keys: entries.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: entries that the environment reads with that dimension.
        out_keys_inv: what the policy writes for them, without it; default: the same keys.
    """

    def _apply_transform(self, value: Tensor) -> Tensor:
        return super()._inv_apply_transform(value)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return super()._apply_transform(value)

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        dim = self._at(self.dim, leaf.ndim)
        _check_one(leaf.shape, dim, type(self).__name__)
        return leaf.squeeze(dim + leaf.ndim)


def _without(value: Tensor, dim: int, who: str) -> Tensor:
    _check_one(value.shape, dim, who)
    return value.squeeze(dim)


def _check_one(shape: Sequence[int], dim: int, who: str) -> None:
    if not -len(shape) <= dim < 0 or shape[dim] != 1:
        raise ValueError(f"{who} removes dimension {dim}, which must have size 1; the entry has shape {tuple(shape)}")
