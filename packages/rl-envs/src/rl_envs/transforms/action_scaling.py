"""``ActionScaling``: a policy acts in [-1, 1], the environment between its own bounds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Bounded, Columns, Composite, RowProgram, TensorSpec, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.transforms.end_groups import specs_seen
from rl_envs.transforms.entry_map import EntryMap
from rl_envs.transforms.numpy_rows import entry_program, entry_rows

__all__ = ["ActionScaling"]


class ActionScaling(EntryMap):
    """Maps the policy's action ``a`` to the environment's: ``a * scale + loc``.

    By default loc and scale are the middle and half the width of the action's bounds, so that ``[-1, 1]`` reaches all
    of them. With ``standard_normal=False`` the policy's action is ``(a - loc) / scale`` of the environment's.

    Args:
        in_keys_inv: the environment's actions; default: its only one.
        out_keys_inv: what the policy writes for them; default: the same keys.
        in_keys: entries of stored data to map to the policy's scale, by the inverse of the map, at sampling.
        out_keys: where to write them; default: the same keys.
        loc: the middle, a number or a tensor that broadcasts to the action.
        scale: the width, likewise. Both or neither; neither needs an action with finite bounds.
        standard_normal: the environment's action is ``a * scale + loc`` (True) or ``(a - loc) / scale`` (False).

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_envs import PendulumEnv
        >>> env = TransformedEnv(PendulumEnv(), ActionScaling())  # torques in [-2, 2]
        >>> env.action_spec.low.item(), env.transform._inv_apply_transform(torch.tensor([0.5]))
        (-1.0, tensor([1.]))
    """

    invertible = True
    loc: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        *,
        loc: Tensor | float | None = None,
        scale: Tensor | float | None = None,
        standard_normal: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if (loc is None) != (scale is None):
            raise ValueError("ActionScaling takes both loc and scale, or neither (then the action's bounds decide)")
        if scale is not None and bool((torch.as_tensor(scale) == 0).any()):
            raise ValueError("ActionScaling got a scale of 0, under which every action is the same")
        self.standard_normal = standard_normal
        self._given, self._find_key, self._seen = loc is not None, in_keys_inv is None, -1
        self._renamed = None if out_keys_inv is None else list(self.out_keys_inv)
        for name, number in (("loc", loc), ("scale", scale)):
            value = None if number is None else torch.as_tensor(number, dtype=_float_of(number))
            self.register_buffer(name, value, persistent=self._given)  # bounds are found again

    def set_container(self, owner: object) -> None:
        """Take an owner; its action is looked at at the first use."""
        super().set_container(owner)
        self._seen = -1

    # ---------------------------------------------------------------- what the environment says
    def _find(self) -> None:
        """Name the action and take its bounds, where they were left out."""
        seen = specs_seen(self)
        if seen is None or seen == self._seen:
            return
        parent = self.parent
        assert parent is not None  # specs_seen says so
        if self._find_key:
            self.in_keys_inv = [parent.action_key]
            self.out_keys_inv = self._renamed or [parent.action_key]
        if not self._given:
            self._take_bounds(parent.full_action_spec)
        self._seen = seen

    def _take_bounds(self, action_spec: Composite) -> None:
        found = []
        for key in self.in_keys_inv:
            leaf = action_spec.get(key, None)
            if not isinstance(leaf, Bounded) or not leaf.low.is_floating_point():
                raise EnvError(
                    f"ActionScaling needs bounds: the action {key!r} is {leaf!r}. Give it loc= and scale=, or a key "
                    f"with in_keys_inv=[...]; there are {list(action_spec.keys(True, True))}"
                )
            middle, half = (leaf.high + leaf.low) / 2, (leaf.high - leaf.low) / 2
            if not bool(torch.isfinite(middle).all() and torch.isfinite(half).all()):
                raise EnvError(f"the bounds of the action {key!r} are not finite; give ActionScaling loc= and scale=")
            found.append((middle.expand(leaf.shape).clone(), half.expand(leaf.shape).clone()))
        if any(not torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True)):
            raise EnvError("the actions of this ActionScaling have different bounds; append one ActionScaling for each")
        if found:
            self.loc, self.scale = found[0]

    def _numbers(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise EnvError(
                "ActionScaling has no loc and scale; append it to an environment with bounds, or construct it with both"
            )
        return self.loc.to(like.device, like.dtype), self.scale.to(like.device, like.dtype)

    # ---------------------------------------------------------------- values
    def _apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._numbers(value)
        return (value - loc) / scale if self.standard_normal else value * scale + loc

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._numbers(value)
        return value * scale + loc if self.standard_normal else (value - loc) / scale

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._find()
        return super()._inv_call(tensordict)

    # ---------------------------------------------------------------- specs
    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The bounds as the policy sees them."""
        self._find()
        return super().transform_action_spec(action_spec)

    def _map_spec_inward(self, leaf: TensorSpec) -> TensorSpec:
        if not isinstance(leaf, Bounded):
            return Unbounded(shape=leaf.shape, dtype=leaf.dtype, device=leaf.device)
        ends = [self._apply_transform(bound.expand(leaf.shape)) for bound in (leaf.low, leaf.high)]
        return leaf.replace(low=torch.minimum(*ends), high=torch.maximum(*ends))

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Where loc and scale are on the CPU."""
        return all(number is None or number.device.type == "cpu" for number in (self.loc, self.scale))

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Two numpy calls per row."""
        self._find()
        pairs = zip(self.in_keys_inv, self.out_keys_inv, strict=True)
        inward = [(key, out, self._write_back) for key, out in pairs]
        for key, out, _ in inward:
            entry_rows(self, before, key)
            entry_rows(self, after, out)
        return entry_program(self, before, after, [], inward)

    def _write_back(self, source: np.ndarray, target: np.ndarray) -> None:
        assert self.loc is not None and self.scale is not None
        if self.standard_normal:
            np.multiply(source, self.scale.numpy(), target)
            np.add(target, self.loc.numpy(), target)
        else:
            np.subtract(source, self.loc.numpy(), target)
            np.divide(target, self.scale.numpy(), target)


def _float_of(number: object) -> torch.dtype:
    if isinstance(number, Tensor) and number.is_floating_point():
        return number.dtype
    return torch.get_default_dtype()
