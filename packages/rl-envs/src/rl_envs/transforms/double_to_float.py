"""``DoubleToFloat``: float32 outside of environments that compute in float64."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Bounded, Columns, Composite, RowProgram, TensorSpec, Transform
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.end_groups import specs_seen
from rl_envs.transforms.numpy_rows import entry_program

__all__ = ["DoubleToFloat"]


class DoubleToFloat(Transform):
    """Casts float64 observations and rewards to float32, and float32 actions back to float64.

    Bounds of an action are rounded inwards, so that every float32 action is legal in float64.

    Args:
        in_keys: observations and rewards to cast; default: every one that is float64.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: actions (and states) that the environment wants in float64; default: every one that is float64.
        out_keys_inv: what the policy writes for them; default: the same keys.

    Example:
        >>> from tensordict import TensorDict
        >>> DoubleToFloat(in_keys=["x"])(TensorDict(x=torch.zeros(2, dtype=torch.float64)))["x"].dtype
        torch.float32
    """

    invertible = True

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self._find_outward = in_keys is None
        self._find_inward = in_keys_inv is None
        self._seen: int | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner; its float64 entries are found at the first use."""
        super().set_container(owner)
        self._seen = None

    def _find(self) -> None:
        """Name the float64 entries of the environment before this transform, where keys were left out."""
        seen = specs_seen(self)
        if seen is None or seen == self._seen:
            return
        parent = self.parent
        assert parent is not None  # specs_seen says so
        if self._find_outward:
            self.in_keys = [*_doubles(parent.observation_spec), *_doubles(parent.full_reward_spec)]
            self.out_keys = list(self.in_keys)
        if self._find_inward:
            self.in_keys_inv = [*_doubles(parent.full_action_spec), *_doubles(parent.state_spec)]
            self.out_keys_inv = list(self.in_keys_inv)
        self._seen = seen

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.to(torch.float32)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value.to(torch.float64)

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._find()
        return super()._call(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._find()
        return super()._inv_call(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: the named entries, or every float64 entry where none are named and there is no environment."""
        self._find()
        if self._find_outward and self._seen is None:
            for key in list(tensordict.keys(True, True)):
                value = tensordict.get(key)
                if isinstance(value, Tensor) and value.dtype == torch.float64:
                    tensordict.set(key, self._apply_transform(value))
            return tensordict
        return super().forward(tensordict)

    # ---------------------------------------------------------------- specs
    def _cast_out(self, spec: Composite) -> Composite:
        self._find()
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            leaf = spec.get(key, None)
            if leaf is not None:
                spec.set(out_key, leaf.to(torch.float32))
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """float32 for float64."""
        return self._cast_out(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """float32 for float64."""
        return self._cast_out(reward_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """float32, bounds rounded inwards."""
        return self._cast_in(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """float32, bounds rounded inwards."""
        return self._cast_in(state_spec)

    def _cast_in(self, spec: Composite) -> Composite:
        self._find()
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            leaf = spec.get(key, None)
            if leaf is not None:
                if out_key != key:
                    spec.pop(key)
                spec.set(out_key, _inside(leaf))
        return spec

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

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


def _doubles(spec: Composite) -> list[Key]:
    return [as_key(as_path(key)) for key, leaf in spec.items(True, True) if leaf.dtype == torch.float64]


def _inside(spec: TensorSpec) -> TensorSpec:
    """The spec in float32, its bounds not outside of the float64 ones."""
    if not isinstance(spec, Bounded):
        return spec.to(torch.float32)
    low, high = spec.low.to(torch.float32), spec.high.to(torch.float32)
    low = torch.where(low.double() < spec.low, torch.nextafter(low, torch.full_like(low, torch.inf)), low)
    high = torch.where(high.double() > spec.high, torch.nextafter(high, torch.full_like(high, -torch.inf)), high)
    return spec.replace(low=low, high=high, dtype=torch.float32)
