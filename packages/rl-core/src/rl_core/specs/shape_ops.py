"""A change of shape as one object, applied alike to a spec's shape, its bounds, its masks and its children.

An operation acts on the first ``n`` dimensions of a tensor and leaves the rest alone. A leaf applies it to all its
dimensions, a :class:`~rl_core.specs.composite.Composite` of ``n`` batch dimensions to the first ``n`` of every leaf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = [
    "ShapeOp",
    "as_size",
    "expand",
    "flatten",
    "index",
    "normalised",
    "permute",
    "reshape",
    "squeeze",
    "unflatten",
    "unsqueeze",
]

# A dynamic (-1) dimension is played by this prime while torch infers a shape on the meta device.
_DYNAMIC = 1_000_003


@dataclass(frozen=True)
class ShapeOp:
    """One change of shape.

    Args:
        name: what it is called in error messages.
        act: ``act(tensor, n)`` changes the first ``n`` dimensions of the tensor.
        batch: ``batch(b, shape)`` says how many of the first ``b`` (batch) dimensions of ``shape`` are left.
        items: for an index, what is asked of each leading dimension.
    """

    name: str
    act: Callable[[Tensor, int], Tensor]
    batch: Callable[[int, torch.Size], int]
    items: tuple[Any, ...] | None = None

    def shape(self, shape: torch.Size, n: int) -> torch.Size:
        """The shape after the operation; dynamic (-1) dimensions stay dynamic."""
        stand_in = torch.empty([_DYNAMIC if size < 0 else size for size in shape], device="meta")
        try:
            out = self.act(stand_in, n).shape
        except RuntimeError as error:
            raise SpecError(f"{self.name} does not fit a spec of shape {list(shape[:n])}: {error}") from error
        if all(size >= 0 for size in shape):
            return out
        return torch.Size([-1 if size and size % _DYNAMIC == 0 else size for size in out])


def as_size(shape: int | Sequence[int] | None = None, *rest: int) -> torch.Size:
    """A ``torch.Size`` from an int, a sequence, nothing or None (no dimension), or several ints.

    >>> as_size(2, 3), as_size((2, 3)), as_size(None)
    (torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([]))
    """
    if shape is None:
        return torch.Size([])
    if isinstance(shape, int):
        return torch.Size([shape, *rest])
    return torch.Size(shape)


def _wrap(dim: int, ndim: int, name: str) -> int:
    if not -ndim <= dim < ndim:
        raise SpecError(f"{name}: dimension {dim} is out of range; the spec has {ndim} (batch) dimensions.")
    return dim % ndim


def expand(target: torch.Size, shape: torch.Size) -> ShapeOp:
    """Broadcast the leading ``shape`` to ``target``; -1 keeps a size."""
    added = len(target) - len(shape)
    if added < 0:
        raise SpecError(f"A spec of shape {list(shape)} cannot be expanded to the fewer dimensions {list(target)}.")
    keep = torch.Size([-1 if i >= added and size == shape[i - added] else size for i, size in enumerate(target)])
    return ShapeOp(
        name=f"expand to {list(target)}",
        act=lambda tensor, n: tensor.expand((*keep, *tensor.shape[n:])),
        batch=lambda b, _: b + added,
    )


def reshape(target: torch.Size, shape: torch.Size) -> ShapeOp:
    """Give the leading ``shape`` another shape of as many elements; one -1 is inferred."""

    def batch(b: int, old: torch.Size) -> int:
        count, product = math.prod(old[:b]), 1
        for taken, size in enumerate((*target, 0)):
            if product == count and (taken or not b):
                return taken
            product *= size
        return 0

    return ShapeOp(
        name=f"reshape to {list(target)}",
        act=lambda tensor, n: tensor.reshape(*target, *tensor.shape[n:]),
        batch=batch,
    )


def flatten(start: int, end: int, shape: torch.Size) -> ShapeOp:
    """Merge the dimensions ``start`` to ``end`` (inclusive)."""
    ndim = len(shape)
    if ndim == 0:
        return unsqueeze(0, shape)
    first, last = _wrap(start, ndim, "flatten"), _wrap(end, ndim, "flatten")
    return ShapeOp(
        name=f"flatten({start}, {end})",
        act=lambda tensor, n: tensor.flatten(first, last),
        batch=lambda b, _: b if b <= first else max(first + 1, b - (last - first)) if b > last else first,
    )


def unflatten(dim: int, sizes: Sequence[int], shape: torch.Size) -> ShapeOp:
    """Split one dimension into several."""
    at, parts = _wrap(dim, len(shape), "unflatten"), tuple(sizes)
    return ShapeOp(
        name=f"unflatten({dim}, {list(sizes)})",
        act=lambda tensor, n: tensor.unflatten(at, parts),
        batch=lambda b, _: b if b <= at else b + len(parts) - 1,
    )


def unsqueeze(dim: int, shape: torch.Size) -> ShapeOp:
    """Insert a dimension of size 1."""
    at = _wrap(dim, len(shape) + 1, "unsqueeze")
    return ShapeOp(
        name=f"unsqueeze({dim})",
        act=lambda tensor, n: tensor.unsqueeze(at),
        batch=lambda b, _: b + 1 if at <= b else b,
    )


def squeeze(dim: int | Sequence[int] | None, shape: torch.Size) -> ShapeOp:
    """Drop the named dimensions (None: all) where their size is 1."""
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = tuple(d for d in sorted({_wrap(d, len(shape), "squeeze") for d in dims}) if shape[d] == 1)
    return ShapeOp(
        name=f"squeeze({dim})",
        act=lambda tensor, n: tensor.squeeze(gone) if gone else tensor,
        batch=lambda b, _: b - sum(d < b for d in gone),
    )


def permute(dims: Sequence[int], shape: torch.Size) -> ShapeOp:
    """Reorder the dimensions."""
    order = [_wrap(d, len(shape), "permute") for d in dims]
    return ShapeOp(
        name=f"permute({list(dims)})",
        act=lambda tensor, n: tensor.permute(*order, *range(n, tensor.ndim)),
        batch=lambda b, _: b if set(order[:b]) == set(range(b)) else 0,
    )


def index(key: Any, shape: torch.Size) -> ShapeOp:
    """Index the leading dimensions as a tensor is indexed: ints, slices, None, tensors, lists, ellipsis, masks."""
    items = normalised(key, shape)
    rest = (*items, Ellipsis)
    return ShapeOp(
        name=f"index {key!r}",
        act=lambda tensor, n: tensor[rest],
        batch=lambda b, _: _batch_after(items, b),
        items=items,
    )


def normalised(key: Any, shape: torch.Size) -> tuple[Any, ...]:
    """The index as a tuple that consumes leading dimensions only, without ellipsis and without boolean masks."""
    items: list[Any] = []
    for item in key if isinstance(key, tuple) else (key,):
        if isinstance(item, bool):
            raise SpecError("A spec cannot be indexed with a Python bool.")
        if item is None or item is Ellipsis or isinstance(item, (int, slice)):
            items.append(item)
            continue
        tensor = torch.as_tensor(list(item) if isinstance(item, range) else item)
        if tensor.dtype == torch.bool:
            items.extend(tensor.nonzero().unbind(-1))
        else:
            items.append(int(tensor) if tensor.ndim == 0 else tensor.to(device="cpu", dtype=torch.long))
    consumed = sum(item is not None and item is not Ellipsis for item in items)
    if consumed > len(shape):
        raise IndexError(f"A spec with {len(shape)} (batch) dimensions {list(shape)} cannot be indexed with {key!r}.")
    at = next((i for i, item in enumerate(items) if item is Ellipsis), None)
    if at is not None:
        items[at : at + 1] = [slice(None)] * (len(shape) - consumed)
    _check_ints(items, shape, key)
    return tuple(items)


def _check_ints(items: Sequence[Any], shape: torch.Size, key: Any) -> None:
    dims = iter(shape)
    for item in items:
        if item is None:
            continue
        size = next(dims)
        if isinstance(item, int) and size >= 0 and not -size <= item < size:
            raise IndexError(f"Index {key!r} is out of range for a spec of shape {list(shape)}.")


def _batch_after(items: tuple[Any, ...], b: int) -> int:
    """How many leading dimensions of the result come from the first ``b`` dimensions."""
    taken, left, seen_tensor = 0, 0, False
    for item in items:
        if taken >= b and item is not None:
            break
        if item is None:
            left += 1
            continue
        taken += 1
        if isinstance(item, slice):
            left += 1
        elif isinstance(item, Tensor) and not seen_tensor:
            left, seen_tensor = left + item.ndim, True
    return left + max(b - taken, 0)
