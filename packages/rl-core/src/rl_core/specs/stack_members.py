"""The members of a stack of specs: their joint shape, and a change of the stack's shape made on each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs import shape_ops
from rl_core.specs.base import TensorSpec
from rl_core.specs.shape_ops import ShapeOp
from rl_core.specs.values import concrete

__all__ = ["apply_to_members", "index_members", "joint_shape"]


def joint_shape(specs: Sequence[TensorSpec], dim: int, what: str) -> torch.Size:
    """The stack's shape, with -1 where the members differ."""
    if len({len(spec.shape) for spec in specs}) != 1:
        raise SpecError(f"{what}: members must have as many dimensions each, found {[list(s.shape) for s in specs]}.")
    sizes = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*[s.shape for s in specs], strict=True)]
    return torch.Size([*sizes[:dim], len(specs), *sizes[dim:]])


def apply_to_members(stack: TensorSpec, specs: Sequence[TensorSpec], dim: int, op: ShapeOp, n: int) -> Any:
    """A change of shape of a stack that keeps the stacked dimension whole, made on each member."""
    from rl_core.specs.stacking import stack_specs

    if op.items is not None:
        return index_members(specs, dim, op.items, stack.shape)
    marker = torch.arange(len(specs)).reshape([-1 if i == dim else 1 for i in range(stack.ndim)])
    moved = op.act(marker.expand(concrete(stack.shape)), n)
    at = next((d for d in range(moved.ndim) if _marks(moved, d, len(specs))), None)
    if at is None:
        raise SpecError(f"{op.name} would break the stack of shape {list(stack.shape)} along dimension {dim}.")
    # Each member stands in for the whole with a dimension of size 1, which is taken away again.
    return stack_specs([spec.unsqueeze(dim)._apply(op, n).squeeze(at) for spec in specs], at)


def _marks(moved: Tensor, d: int, count: int) -> bool:
    """Whether dimension ``d``, and no other, tells the members apart."""
    rows = torch.arange(count).reshape([-1 if i == d else 1 for i in range(moved.ndim)])
    return moved.shape[d] == count and bool((moved == rows).all())


def index_members(specs: Sequence[TensorSpec], dim: int, key: Any, shape: torch.Size) -> Any:
    """A member (int at the stacked dimension) or a stack of some members, their other dimensions indexed too."""
    from rl_core.specs.stacking import stack_specs

    before, at, after = _split_index(shape_ops.normalised(key, shape), dim)
    tensors = [any(isinstance(item, Tensor) for item in part) for part in (before, [at], after)]
    if sum(tensors) > 1 or (isinstance(at, Tensor) and at.ndim != 1):
        raise SpecError(f"A stack of specs takes one index tensor (of one dimension along the stack), found {key!r}.")
    inner = (*before, *after)
    if isinstance(at, int):
        return specs[at][inner] if inner else specs[at]
    rows = at.tolist() if isinstance(at, Tensor) else range(len(specs))[at]
    lead = sum(item.ndim if isinstance(item, Tensor) else not isinstance(item, int) for item in before)
    return stack_specs([specs[i][inner] if inner else specs[i] for i in rows], int(lead))


def _split_index(items: Sequence[Any], dim: int) -> tuple[list[Any], Any, list[Any]]:
    """What an index says of the dimensions before, at and after ``dim``."""
    before: list[Any] = []
    for i, item in enumerate(items):
        consumed = sum(entry is not None for entry in before)
        if item is not None and consumed == dim:
            return before, item, list(items[i + 1 :])
        before.append(item)
    missing = dim - sum(entry is not None for entry in before)
    return before + [slice(None)] * missing, slice(None), []
