"""What the return functions ask of their inputs: one shape, bool flags, a time dimension, discounts of two kinds."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from rl_core.errors import LossError, SpecError

__all__ = ["Discount", "as_number", "check_series", "common_dtype", "last_step", "layout", "per_step"]

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
        LossError: two shapes differ; both are named.
        SpecError: a flag is not bool, or there is no such dimension.
    """
    named = {**values, **flags}
    first, reference = next(iter(named.items()))
    for name, tensor in named.items():
        if tensor.shape != reference.shape:
            raise LossError(
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


def per_step(name: str, discount: Discount, like: Tensor) -> Tensor:
    """The discount as a tensor with a value per step.

    Args:
        name: the argument's name, for the error.
        discount: a number, or a tensor that broadcasts to ``like``.
        like: of the wanted shape, dtype and device.

    Returns:
        An expanded view, of ``like``'s shape.

    Raises:
        LossError: the tensor does not broadcast to that shape.

    >>> per_step("gamma", 0.5, torch.zeros(2, 1)).tolist()
    [[0.5], [0.5]]
    """
    if isinstance(discount, Tensor):
        fits = discount.ndim <= like.ndim and all(
            size in (1, wanted) for size, wanted in zip(reversed(discount.shape), reversed(like.shape), strict=False)
        )
        if not fits:
            raise LossError(
                f"{name} {list(discount.shape)} does not broadcast to the reward {list(like.shape)}. Give one number, "
                f"or a tensor with a value per step; a discount per row of [B, T, F] is shaped [B, 1, 1]."
            )
        return discount.to(like.dtype).to(like.device).expand(like.shape)
    return torch.full((), discount, dtype=like.dtype, device=like.device).expand(like.shape)


def last_step(like: Tensor, time_dim: int) -> Tensor:
    """bool, True in the last step, of ``like``'s shape."""
    shape = [1] * like.ndim
    shape[time_dim] = -1
    steps = like.shape[time_dim]
    return (torch.arange(steps, device=like.device) == steps - 1).reshape(shape).expand(like.shape)
