"""What the return functions ask of their inputs: one shape, bool flags, a time dimension, discounts of two kinds."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["Discount", "as_number", "check_series", "common_dtype", "layout"]

Discount = float | Tensor
"""A discount: one number, or a tensor that broadcasts to the reward (a value per step)."""


def check_series(time_dim: int, flags: dict[str, Tensor], values: dict[str, Tensor]) -> int:
    """Check that all tensors have one shape and the flags are bool.

    Args:
        time_dim: index of the time dimension, negative from the end.
        flags: end flags by argument name.
        values: the other tensors by argument name.

    Returns:
        The time dimension as a non-negative index.

    Raises:
        SpecError: two shapes differ (both are named), a flag is not bool, or there is no such dimension.
    """
    named = {**values, **flags}
    first, reference = next(iter(named.items()))
    for name, tensor in named.items():
        if tensor.shape != reference.shape:
            raise SpecError(
                f"{first} {list(reference.shape)} and {name} {list(tensor.shape)} must have one shape, [*B, T, F]; "
                "nothing is broadcast here. Expand the smaller one on purpose."
            )
    for name, flag in flags.items():
        if flag.dtype is not torch.bool:
            raise SpecError(f"{name} must be a bool tensor; got {flag.dtype}. Convert it with {name}.bool().")
    if not -reference.ndim <= time_dim < reference.ndim:
        raise SpecError(f"time_dim={time_dim} is no dimension of {first} {list(reference.shape)}")
    return time_dim % reference.ndim


def layout(shape: torch.Size, time_dim: int) -> tuple[int, int, int]:
    """A contiguous tensor of this shape read as [B, T, F]: all before the time dimension, time, all after it.

    >>> layout(torch.Size([2, 3, 5, 7]), 2)
    (6, 5, 7)
    """
    return prod(shape[:time_dim]), shape[time_dim], prod(shape[time_dim + 1 :])


def as_number(discount: Discount) -> float | None:
    """The discount as a number, or None where it varies by step, is differentiated, or lies on an accelerator."""
    if isinstance(discount, Tensor):
        single = discount.numel() == 1 and discount.is_cpu and not discount.requires_grad
        return None if not single or torch.compiler.is_compiling() else float(discount)
    return float(discount)


def common_dtype(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the widest of their dtypes."""
    dtype = tensors[0].dtype
    if all(tensor.dtype == dtype for tensor in tensors):
        return list(tensors)
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]
