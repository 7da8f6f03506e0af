"""Values less their mean, over their standard deviation: over all rows, over valid ones, or within groups."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import LossError

__all__ = ["standardize", "standardize_groups"]


def standardize(
    values: Tensor, mask: Tensor | None = None, keep_dims: tuple[int, ...] = (), floor: float = 1e-6
) -> Tensor:
    """Subtract the mean and divide by the standard deviation (unbiased).

    Args:
        values: any shape.
        mask: bool, broadcastable to the values: only these count for the two moments.
        keep_dims: dimensions with moments of their own, e.g. the agents'.
        floor: smallest divisor.

    Returns:
        Same shape. A single value gives 0.

    >>> standardize(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.,  0.,  1.])
    """
    if mask is None and not keep_dims and values.numel() > 1:
        variance, mean = torch.var_mean(values)
        return (values - mean) / variance.sqrt().clamp_min(floor)
    kept = {dim % values.ndim for dim in keep_dims}
    dims = tuple(dim for dim in range(values.ndim) if dim not in kept)
    if not dims:
        return torch.zeros_like(values)
    if mask is None:
        variance, mean = torch.var_mean(values, dims, correction=0, keepdim=True)
        count = values.numel() / mean.numel()
        variance = variance * (count / max(count - 1, 1))
    else:
        valid = mask.expand_as(values)
        number = valid.sum(dims, keepdim=True)
        mean = values.masked_fill(~valid, 0).sum(dims, keepdim=True) / number.clamp_min(1)
        squares = (values - mean).masked_fill(~valid, 0).square().sum(dims, keepdim=True)
        variance = squares / (number - 1).clamp_min(1)
    return (values - mean) / variance.sqrt().clamp_min(floor)


def standardize_groups(values: Tensor, groups: Tensor, mask: Tensor | None = None, floor: float = 1e-6) -> Tensor:
    """:func:`standardize` within each group.

    Args:
        values: any shape.
        groups: integers, broadcastable to the values: equal numbers, one group.
        mask: bool, broadcastable to the values: only these count for the moments.
        floor: smallest divisor.

    Returns:
        Same shape. A group of one gives 0.

    Raises:
        LossError: the groups do not broadcast to the values.

    >>> values, groups = torch.tensor([1.0, 3.0, 10.0, 30.0]), torch.tensor([0, 0, 7, 7])
    >>> standardize_groups(values, groups)
    tensor([-0.7071,  0.7071, -0.7071,  0.7071])
    """
    if groups.ndim > values.ndim or torch.broadcast_shapes(groups.shape, values.shape) != values.shape:
        raise LossError(f"groups {list(groups.shape)} do not broadcast to the values {list(values.shape)}")
    names, index = torch.unique(groups, return_inverse=True)
    index = index.expand(values.shape).flatten()
    flat = values.flatten()
    weight = torch.ones_like(flat) if mask is None else mask.expand(values.shape).flatten().to(flat.dtype)
    counted = flat if mask is None else flat.masked_fill(weight == 0, 0)

    def total(rows: Tensor) -> Tensor:
        return rows.new_zeros(names.numel()).index_add(0, index, rows)

    number = total(weight)
    mean = total(counted) / number.clamp_min(1)
    centred = flat - mean[index]
    squares = centred.square() if mask is None else centred.masked_fill(weight == 0, 0).square()
    deviation = (total(squares) / (number - 1).clamp_min(1)).sqrt().clamp_min(floor)
    return (centred / deviation[index]).reshape(values.shape)
