"""StackedComposite: Composites that differ, side by side along one batch dimension, kept as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from typing_extensions import Self

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.composite import Composite
from rl_core.specs.shape_ops import ShapeOp, as_size
from rl_core.specs.stack_members import apply_to_members, index_members, joint_shape

__all__ = ["StackedComposite"]


class StackedComposite(Composite):
    """Composites that differ, stacked along one of their batch dimensions; values are lazy stacks of TensorDicts.

    ``spec[i]`` (along ``stack_dim``) is a member, ``spec[key]`` the stack of the members' entries. Only keys that all
    members have are seen from outside.

    Args:
        *specs: the members, of as many batch dimensions each.
        dim: where the stacked dimension stands.
    """

    def __init__(self, *specs: Composite, dim: int = 0) -> None:
        shape = joint_shape(specs, dim, "StackedComposite")
        devices = {spec.device for spec in specs}
        super().__init__(shape=shape, device=devices.pop() if len(devices) == 1 else None)
        self.specs, self.stack_dim = tuple(specs), dim
        self._refresh()

    def _refresh(self) -> None:
        """Recompute the entries that all members have."""
        from rl_core.specs.stacking import stack_specs

        self._specs = {}
        for key in self.specs[0].keys():  # noqa: SIM118
            entries = [spec.get(key, None) for spec in self.specs]
            if all(isinstance(entry, TensorSpec) and entry.ndim == entries[0].ndim for entry in entries):
                self._specs[key] = stack_specs(entries, self.stack_dim)

    def _config(self) -> dict[str, Any]:
        return {"specs": self.specs, "dim": self.stack_dim}

    @classmethod
    def _made(cls, config: dict[str, Any]) -> Self:
        return cls(*config["specs"], dim=config["dim"])

    def _apply(self, op: ShapeOp, n: int | None = None) -> Any:
        return apply_to_members(self, self.specs, self.stack_dim, op, self.ndim if n is None else n)

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        """Every member on another device or of another dtype."""
        return type(self)(*[spec.to(dest) for spec in self.specs], dim=self.stack_dim)

    def map_leaves(self, change: Any) -> Self:
        """The stack with every leaf of every member changed."""
        return type(self)(*[spec.map_leaves(change) for spec in self.specs], dim=self.stack_dim)

    def __getitem__(self, key: Any) -> Any:
        """An entry, or the batch dimensions indexed; an int at the stacked one gives a member."""
        if isinstance(key, str) or (isinstance(key, tuple) and key and all(isinstance(k, str) for k in key)):
            return self.get(key)
        return index_members(self.specs, self.stack_dim, key, self.shape)

    def set(self, key: Key, spec: Any) -> None:
        """Give every member its row of the spec."""
        self._check_unlocked(key)
        if isinstance(spec, TensorSpec):
            rows = spec.unbind(self.stack_dim)
            for member, row in zip(self.specs, rows, strict=True):
                member.set(key, row)
            self._refresh()

    def pop(self, key: Key, default: Any = None) -> Any:
        """Remove an entry from every member."""
        self._check_unlocked(key)
        spec = self.get(key, default)
        for member in self.specs:
            member.pop(key, None)
        self._refresh()
        return spec

    def _set_lock(self, locked: bool) -> Self:
        for member in self.specs:
            member._set_lock(locked)
        return super()._set_lock(locked)

    def empty(self) -> Self:
        """The members without entries."""
        return type(self)(*[spec.empty() for spec in self.specs], dim=self.stack_dim)

    def _gathered(self, values: list[TensorDictBase], lead: int) -> Any:
        dim = lead + self.stack_dim
        return LazyStackedTensorDict.maybe_dense_stack(values, dim)

    def rand(self, shape: Shape | None = None) -> TensorDict:
        """The members' draws, dense where they have the same keys and shapes, else a lazy stack."""
        return self._gathered([spec.rand(shape) for spec in self.specs], len(as_size(shape)))

    def blank(self, shape: Shape | None = None) -> TensorDict:
        """Zeros of all members."""
        return self._gathered([spec.blank(shape) for spec in self.specs], len(as_size(shape)))

    def _constant(self, number: int, shape: Shape | None) -> TensorDict:
        values = [spec._constant(number, shape) for spec in self.specs]
        return self._gathered(values, len(as_size(shape)))

    def _splits(self, val: TensorDictBase) -> Iterator[tuple[int, tuple[TensorDictBase, ...]]]:
        """The ways to split a value into one part per member, with the dimension that was split."""
        extra = len(val.batch_size) - self.ndim
        for dim in dict.fromkeys((self.stack_dim + extra, self.stack_dim)):
            if 0 <= dim < val.ndim and val.batch_size[dim] == len(self.specs):
                yield dim, tuple(val.unbind(dim))

    def _members_of(self, val: Any) -> tuple[int, tuple[TensorDictBase, ...]] | None:
        return next(self._splits(val), None) if isinstance(val, TensorDictBase) else None

    def is_in(self, val: Any) -> bool:
        """Whether every member admits its part."""
        ways = self._splits(val) if isinstance(val, TensorDictBase) else ()
        return any(all(spec.is_in(part) for spec, part in zip(self.specs, parts, strict=True)) for _, parts in ways)

    def project(self, val: Any) -> Any:
        """Every member's projection."""
        if self.is_in(val):
            return val
        split = self._members_of(val)
        if split is None:
            raise SpecError(str(self.explain(val)))
        projected = [spec.project(part) for spec, part in zip(self.specs, split[1], strict=True)]
        return LazyStackedTensorDict.maybe_dense_stack(projected, split[0])

    def explain(self, val: Any) -> str | None:
        """Why a value is not legal, in a sentence; None when it is."""
        if self.is_in(val):
            return None
        split = self._members_of(val)
        if split is None:
            return (
                f"StackedComposite expected a TensorDict of batch size {list(self.shape)}, found {type(val).__name__}."
            )
        for i, (spec, part) in enumerate(zip(self.specs, split[1], strict=True)):
            reason = spec.explain(part)
            if reason is not None:
                return f"Member {i} of the stack: {reason}"
        return None

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """One nested dictionary per member, encoded and stacked."""
        if len(val) != len(self.specs) or self.stack_dim:
            raise SpecError(f"StackedComposite encodes a list of {len(self.specs)} dictionaries along dimension 0.")
        pairs = zip(self.specs, val, strict=True)
        return self._gathered([spec.encode(part, ignore_device=ignore_device) for spec, part in pairs], 0)

    def cardinality(self) -> float | int:
        """The product over all members."""
        return math.prod(spec.cardinality() for spec in self.specs)

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.specs, self.stack_dim))
