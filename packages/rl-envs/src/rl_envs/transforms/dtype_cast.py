"""``DTypeCastTransform``: entries of one dtype in another."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Bounded, Columns, Composite, RowProgram, TensorSpec, Transform
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.end_groups import specs_seen
from rl_envs.transforms.entry_transform import dtype_of, map_leaves
from rl_envs.transforms.numpy_rows import entry_program

__all__ = ["DTypeCastTransform"]

_NUMPY = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


class DTypeCastTransform(Transform):
    """Casts observations and rewards of one dtype to another, and actions back.

    Bounds of an action are rounded inwards, so that every action of the policy is legal for the environment.

    Args:
        dtype_in: of the environment's entries.
        dtype_out: what the policy and the data have.
        in_keys: observations and rewards to cast; default: every one of ``dtype_in``.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: actions (and states) that the environment wants in ``dtype_in``; default: every one of that dtype.
        out_keys_inv: what the policy writes for them; default: the same keys.

    Example:
        >>> from tensordict import TensorDict
        >>> cast = DTypeCastTransform(torch.int64, torch.float32, in_keys=["count"])
        >>> cast(TensorDict(count=torch.arange(2), other=torch.arange(2)))["count"]
        tensor([0., 1.])
    """

    invertible = True

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dtype_in, self.dtype_out = dtype_in, dtype_out
        self._find_outward = in_keys is None
        self._find_inward = in_keys_inv is None
        self._seen: int | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner; its entries of the dtype are found at the first use."""
        super().set_container(owner)
        self._seen = None

    def _find(self) -> None:
        """Name the entries of the environment before this transform, where keys were left out."""
        seen = specs_seen(self)
        if seen is None or seen == self._seen:
            return
        parent = self.parent
        assert parent is not None  # specs_seen says so
        if self._find_outward:
            self.in_keys = [*self._of_dtype(parent.observation_spec), *self._of_dtype(parent.full_reward_spec)]
            self.out_keys = list(self.in_keys)
        if self._find_inward:
            self.in_keys_inv = [*self._of_dtype(parent.full_action_spec), *self._of_dtype(parent.state_spec)]
            self.out_keys_inv = list(self.in_keys_inv)
        self._seen = seen

    def _of_dtype(self, spec: Composite) -> list[Key]:
        return [as_key(as_path(key)) for key, leaf in spec.items(True, True) if leaf.dtype == self.dtype_in]

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_out)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_in)

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._find()
        return super()._call(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._find()
        return super()._inv_call(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: the named entries; every one of the dtype where none are named and there is no environment."""
        self._find()
        if self._find_outward and self._seen is None:
            for key in list(tensordict.keys(True, True)):
                value = tensordict.get(key)
                if isinstance(value, Tensor) and value.dtype == self.dtype_in:
                    tensordict.set(key, self._apply_transform(value))
            return tensordict
        return super().forward(tensordict)

    # ---------------------------------------------------------------- specs
    def _cast_out(self, spec: Composite) -> Composite:
        self._find()
        return map_leaves(spec, self.in_keys, self.out_keys, lambda leaf: leaf.to(self.dtype_out))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The other dtype."""
        return self._cast_out(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The other dtype."""
        return self._cast_out(reward_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The other dtype, bounds rounded inwards."""
        return self._cast_in(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The other dtype, bounds rounded inwards."""
        return self._cast_in(state_spec)

    def _cast_in(self, spec: Composite) -> Composite:
        self._find()
        return map_leaves(
            spec, self.in_keys_inv, self.out_keys_inv, lambda leaf: _inside(leaf, self.dtype_out), move=True
        )

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Where numpy has the dtype."""
        return self.dtype_out in _NUMPY

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Assignments cast."""
        self._find()
        outward = [(key, out, _assign) for key, out in zip(self.in_keys, self.out_keys, strict=True)]
        inward = [
            (key, out, _assign)
            for key, out in zip(self.in_keys_inv, self.out_keys_inv, strict=True)
            if key in before and out in after
        ]
        return entry_program(self, before, after, outward, inward)


def _assign(source: np.ndarray, target: np.ndarray) -> None:
    target[...] = source


def _inside(spec: TensorSpec, dtype: torch.dtype) -> TensorSpec:
    """The spec in another dtype, its bounds not outside of the given ones."""
    if not isinstance(spec, Bounded) or not (dtype_of(spec).is_floating_point and dtype.is_floating_point):
        return spec.to(dtype)
    low, high = spec.low.to(dtype), spec.high.to(dtype)
    low = torch.where(low.double() < spec.low.double(), torch.nextafter(low, torch.full_like(low, torch.inf)), low)
    high = torch.where(
        high.double() > spec.high.double(), torch.nextafter(high, torch.full_like(high, -torch.inf)), high
    )
    return spec.replace(low=low, high=high, dtype=dtype)
