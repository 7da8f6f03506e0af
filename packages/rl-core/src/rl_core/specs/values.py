"""Values: how they are made from numbers, compared, aligned with a spec's batch, and located in error texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["SMALL", "align", "as_tensor", "concrete", "located", "ordered", "same"]

# Up to this many elements, a check of the numbers in Python is faster than torch's calls.
SMALL = 16


def concrete(shape: torch.Size) -> torch.Size:
    """The shape with dynamic (-1) dimensions given the size 1."""
    return torch.Size([1 if size < 0 else size for size in shape]) if -1 in shape else shape


def align(tensor: Tensor, at: int, extra: int) -> Tensor:
    """Insert ``extra`` dimensions of size 1 at position ``at``, so that bounds or masks broadcast to a value."""
    return tensor[(slice(None),) * at + (None,) * extra] if extra > 0 else tensor


# torch does not order these on the CPU.
_UNORDERED = (torch.bool, torch.uint16, torch.uint32, torch.uint64)


def ordered(tensor: Tensor) -> Tensor:
    """The tensor in a dtype that torch can compare and clamp."""
    return tensor.long() if tensor.dtype in _UNORDERED else tensor


def as_tensor(val: Any, dtype: torch.dtype | None, device: torch.device | None) -> Tensor:
    """A tensor from numbers, (lists of) arrays or tensors; arrays are copied, so that later changes do not show."""
    if isinstance(val, Tensor):
        return val.to(device=device, dtype=dtype)
    if not isinstance(val, (int, float, bool)):
        val = np.asarray([np.asarray(v) for v in val] if isinstance(val, (list, tuple)) else val)
        if val.dtype == object or val.dtype.kind in "USOM":
            raise SpecError(f"Expected numbers, found an array of dtype {val.dtype}: {val!r}.")
    return torch.tensor(val, dtype=dtype, device=device)


def located(position: Sequence[int]) -> str:
    """Where a value was found, for error texts; nothing for a value without dimensions.

    >>> located([0, 2]), located([])
    (' at index [0, 2]', '')
    """
    return f" at index {list(position)}" if len(position) else ""


def same(a: Any, b: Any) -> bool:
    """Whether two constructor arguments are equal; tensors may broadcast."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.dtype != b.dtype or a.device != b.device:
            return False
        return torch.equal(*torch.broadcast_tensors(a, b)) if _broadcastable(a, b) else False
    return bool(a == b)


def _broadcastable(a: Tensor, b: Tensor) -> bool:
    return all(1 in (x, y) or x == y for x, y in zip(reversed(a.shape), reversed(b.shape), strict=False))
