"""The one place where per-row losses become a number, with or without a mask of valid rows."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["check_reduction", "masked_mean", "masked_rows", "reduce"]

_REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str) -> str:
    """The reduction itself.

    Raises:
        SpecError: it is none of "mean", "sum", "none".
    """
    if reduction not in _REDUCTIONS:
        raise SpecError(f"reduction is one of {', '.join(map(repr, _REDUCTIONS))}; got {reduction!r}")
    return reduction


def reduce(values: Tensor, reduction: str, mask: Tensor | None = None) -> Tensor:
    """Reduce per-row values to a scalar, over valid rows only.

    Args:
        values: [*B, ...].
        reduction: "mean", "sum" or "none".
        mask: bool [*B], True where the row counts; None: every row does.

    Returns:
        A scalar; with "none" the values, zero in invalid rows. A mean over no rows is 0.

    >>> values, mask = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False])
    >>> reduce(values, "mean", mask), reduce(values, "sum", mask), reduce(values, "none", mask)
    (tensor(1.5000), tensor(3.), tensor([1., 2., 0.]))
    """
    if mask is None:
        if reduction == "mean":
            return values.mean()
        return values.sum() if reduction == "sum" else values
    valid = _align(mask, values)
    kept = values.masked_fill(~valid, 0)
    if reduction == "none":
        return kept
    total = kept.sum()
    if reduction == "sum":
        return total
    return total / valid.expand_as(values).sum().clamp_min(1)


def masked_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean over valid rows."""
    return values.mean() if mask is None else reduce(values, "mean", mask)


def masked_rows(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The valid rows, [N, ...], of values [*B, ...]; the values themselves without a mask."""
    if mask is None:
        return values
    _align(mask, values)
    return values[mask]


def _align(mask: Tensor, values: Tensor) -> Tensor:
    """The mask with as many trailing ones as the values have further dimensions."""
    if mask.dtype is not torch.bool or values.shape[: mask.ndim] != mask.shape:
        raise SpecError(
            f"a mask is bool and has the leading shape of what it masks; got {mask.dtype} {list(mask.shape)} "
            f"for values {list(values.shape)}"
        )
    return mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
