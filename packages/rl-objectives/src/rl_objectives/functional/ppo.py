"""The surrogate objectives of proximal policy optimisation, and what one logs beside them; per row, nothing reduced."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clipped_surrogate", "effective_sample_size", "explained_variance", "standardize"]


def clipped_surrogate(ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> Tensor:
    r"""The clipped surrogate, to be maximised.

    .. math:: \min(r A, \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A)

    Args:
        ratio: pi(a|s) / pi_old(a|s), any shape.
        advantage: same shape.
        low: the smallest ratio, 1 - epsilon, a scalar.
        high: the largest ratio, 1 + epsilon, a scalar.

    Returns:
        Same shape.

    Schulman et al., 2017, Proximal Policy Optimization Algorithms, eq. 7, arXiv 1707.06347.

    >>> low, high = torch.tensor(0.8), torch.tensor(1.2)
    >>> clipped_surrogate(torch.tensor([1.5, 1.5, 0.5]), torch.tensor([1.0, -1.0, -1.0]), low, high)
    tensor([ 1.2000, -1.5000, -0.8000])
    """
    return torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)


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


def effective_sample_size(log_ratio: Tensor) -> Tensor:
    r"""How many independent samples the weights are worth, as a share of all: ``(sum w)^2 / (n sum w^2)``.

    Args:
        log_ratio: log weights, any shape.

    Returns:
        A scalar in (0, 1].

    Kong, 1992, A Note on Importance Sampling using Standardized Weights.

    >>> effective_sample_size(torch.zeros(5))
    tensor(1.)
    """
    flat = log_ratio.flatten()
    return (2 * flat.logsumexp(0) - (2 * flat).logsumexp(0)).exp() / max(flat.numel(), 1)


def explained_variance(prediction: Tensor, target: Tensor) -> Tensor:
    """``1 - Var(target - prediction) / Var(target)``, a scalar: 1 is perfect, 0 no better than a constant.

    >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    tensor(0.7500)
    """
    spread = target.var(correction=0)
    return 1 - (target - prediction).var(correction=0) / spread.clamp_min(torch.finfo(target.dtype).tiny)
