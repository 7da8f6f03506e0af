"""Stacked: leaves that differ, side by side along one dimension, kept as they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from rl_core.errors import SpecError
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.shape_ops import ShapeOp, as_size
from rl_core.specs.stack_members import apply_to_members, index_members, joint_shape

__all__ = ["Stacked"]


class Stacked(TensorSpec):
    """Leaves that differ, stacked along ``dim``.

    Values are dense where the members' shapes agree; else they are nested tensors, for a stack along dimension 0.

    Args:
        *specs: the members, of as many dimensions each, of one dtype and device.
        dim: where the stacked dimension stands.

    Example:
        >>> from rl_core import Categorical
        >>> stack = torch.stack([Categorical(2), Categorical(5)])
        >>> stack.shape, stack[1].n
        (torch.Size([2]), 5)
    """

    def __init__(self, *specs: TensorSpec, dim: int = 0) -> None:
        if len({(spec.dtype, spec.device) for spec in specs}) != 1:
            found = [(str(spec.dtype), str(spec.device)) for spec in specs]
            raise SpecError(f"Stacked: members must have one dtype and device, found {found}.")
        super().__init__(joint_shape(specs, dim, "Stacked"), specs[0].dtype, specs[0].device)
        self.specs, self.stack_dim = tuple(specs), dim
        self.batch_ndim = dim + 1 if specs[0].batch_ndim <= dim else specs[0].batch_ndim + 1
        self._ragged = len({spec.shape for spec in specs}) > 1

    def _config(self) -> dict[str, Any]:
        return {"specs": self.specs, "dim": self.stack_dim}

    def replace(self, **changes: Any) -> Self:
        """A stack whose members have some arguments (or ``batch_ndim``) changed."""
        new = super().replace(**changes)
        own = new.batch_ndim - (self.stack_dim < new.batch_ndim)
        new.specs = tuple(spec.replace(batch_ndim=own) for spec in new.specs)
        return new

    @classmethod
    def _made(cls, config: dict[str, Any]) -> Self:
        specs, dim = config["specs"], config["dim"]
        changes = {name: value for name, value in config.items() if name not in ("specs", "dim")}
        return cls(*[spec.replace(**changes) if changes else spec for spec in specs], dim=dim)

    def _apply(self, op: ShapeOp, n: int | None = None) -> Any:
        return apply_to_members(self, self.specs, self.stack_dim, op, self.ndim if n is None else n)

    def __getitem__(self, key: Any) -> Any:
        """Index the dimensions; an int at the stacked one gives a member."""
        return index_members(self.specs, self.stack_dim, key, self.shape)

    def rand(self, shape: Shape | None = None) -> Any:
        """Draws of all members, stacked."""
        return self._gathered([spec.rand(shape) for spec in self.specs], shape)

    def blank(self, shape: Shape | None = None) -> Any:
        """Zeros, stacked."""
        return self._gathered([spec.blank(shape) for spec in self.specs], shape)

    def _constant(self, number: int, shape: Shape | None) -> Any:
        return self._gathered([spec._constant(number, shape) for spec in self.specs], shape)

    def _gathered(self, values: list[Any], shape: Shape | None = None) -> Any:
        lead = len(as_size(shape))
        if not self._ragged:
            return torch.stack(values, lead + self.stack_dim)
        if lead or self.stack_dim:
            raise SpecError(
                f"Stacked: members of shapes {[list(s.shape) for s in self.specs]} do not stack with leading "
                "dimensions; draw from each member of spec.unbind() instead."
            )
        return _ragged_tensor(values)

    def _splits(self, val: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """The ways to split a value into one part per member, with the dimension that was split."""
        if val.is_nested:
            if val.size(0) == len(self.specs) and self.stack_dim == 0:
                yield 0, val.unbind()
            return
        extra = val.ndim - self.ndim
        for dim in dict.fromkeys((self.stack_dim + extra, self.stack_dim)):
            if 0 <= dim < val.ndim and val.shape[dim] == len(self.specs):
                yield dim, val.unbind(dim)

    def _members_of(self, val: Any) -> tuple[int, tuple[Tensor, ...]] | None:
        return next(self._splits(val), None) if isinstance(val, Tensor) else None

    def is_in(self, val: Any) -> bool:
        """Whether every member admits its part."""
        ways = self._splits(val) if isinstance(val, Tensor) else ()
        return any(all(spec.is_in(part) for spec, part in zip(self.specs, parts, strict=True)) for _, parts in ways)

    def explain(self, val: Any) -> str | None:
        """Why a value is not legal, in a sentence; None when it is."""
        if self.is_in(val):
            return None
        split = self._members_of(val)
        if split is None:
            found = list(val.shape) if isinstance(val, Tensor) and not val.is_nested else type(val).__name__
            return f"Stacked expected the shape {list(self.shape)}, found {found}."
        for i, (spec, part) in enumerate(zip(self.specs, split[1], strict=True)):
            reason = spec.explain(part)
            if reason is not None:
                return f"Member {i} of the stack: {reason}"
        return None

    def project(self, val: Any) -> Any:
        """Every member's projection."""
        if self.is_in(val):
            return val
        split = self._members_of(val)
        if split is None:
            raise SpecError(str(self.explain(val)))
        projected = [spec.project(part) for spec, part in zip(self.specs, split[1], strict=True)]
        return _ragged_tensor(projected) if self._ragged else torch.stack(projected, split[0])

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Native values, one per member, encoded and stacked."""
        if len(val) != len(self.specs) or self.stack_dim:
            raise SpecError(f"Stacked encodes a list of {len(self.specs)} values along dimension 0.")
        pairs = zip(self.specs, val, strict=True)
        return self._gathered([spec.encode(part, ignore_device=ignore_device) for spec, part in pairs])

    def to_numpy(self, val: Any) -> Any:
        """A list of the members' native values."""
        split = self._members_of(val)
        if split is None:
            raise SpecError(str(self.explain(val)))
        return [spec.to_numpy(part) for spec, part in zip(self.specs, split[1], strict=True)]

    def cardinality(self) -> float | int:
        """The product over all members."""
        return math.prod(spec.cardinality() for spec in self.specs)

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.specs, self.stack_dim))


def _ragged_tensor(values: Sequence[Tensor]) -> Tensor:
    """A nested tensor, jagged where only the members' first dimensions differ."""
    jagged = len({value.shape[1:] for value in values}) == 1
    return torch.nested.nested_tensor(list(values), layout=torch.jagged if jagged else torch.strided)
