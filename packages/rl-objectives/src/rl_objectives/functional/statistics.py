"""What one logs beside a policy-gradient objective: how far the policy has moved, how good the critic is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_objectives import native

__all__ = ["RatioStatistics", "effective_sample_size", "explained_variance", "ratio_statistics", "share_outside"]


class RatioStatistics(NamedTuple):
    """Scalars about the importance weights of a batch; nan where it has no rows."""

    kl_approx: Tensor
    """Mean of ``-log r``, an estimate of KL(pi_old || pi)."""
    effective_sample_size: Tensor
    """Share of the batch that the weights are worth, in (0, 1]."""
    largest: Tensor
    mean: Tensor


def ratio_statistics(log_ratio: Tensor) -> RatioStatistics:
    """Statistics of the weights ``exp(log_ratio)``.

    Args:
        log_ratio: log weights, any shape, without gradient.

    >>> [round(x.item(), 3) for x in ratio_statistics(torch.log(torch.tensor([0.5, 1.5])))]
    [0.144, 0.8, 1.5, 1.0]
    """
    if native.usable(log_ratio):
        return RatioStatistics(
            *native.run("rl_ratio_statistics", [log_ratio], _flat(log_ratio), (), 1, (4,))[0].unbind()
        )
    flat = log_ratio.flatten()
    count = flat.numel()
    if not count:
        return RatioStatistics(*flat.new_full((4,), float("nan")).unbind())
    # In parts of the largest weight: it may overflow where their shares do not.
    top = flat.max()
    share = (flat - top).exp()
    total, largest = share.sum(), top.exp()
    return RatioStatistics(
        -flat.mean(), total.square() / (torch.dot(share, share) * count), largest, largest * total / count
    )


def effective_sample_size(log_ratio: Tensor) -> Tensor:
    """How many independent samples the weights are worth, as a share of all: ``(sum w)^2 / (n sum w^2)``.

    Args:
        log_ratio: log weights, any shape.

    Returns:
        A scalar in (0, 1].

    Kong, 1992, A Note on Importance Sampling using Standardized Weights.

    >>> effective_sample_size(torch.zeros(5))
    tensor(1.)
    """
    return ratio_statistics(log_ratio.detach()).effective_sample_size


def share_outside(values: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """The share of values outside of [low, high], a scalar.

    >>> share_outside(torch.tensor([0.5, 1.0, 1.5, 1.1]), 0.8, 1.2)
    tensor(0.5000)
    """
    if not isinstance(low, Tensor) and not isinstance(high, Tensor) and native.usable(values):
        return native.run("rl_share_outside", [values], _flat(values), (low, high), 1, ())[0]
    return (values.clamp(low, high) != values).to(values.dtype).mean()  # type: ignore[arg-type]


def explained_variance(prediction: Tensor, target: Tensor) -> Tensor:
    """``1 - Var(target - prediction) / Var(target)``, a scalar: 1 is perfect, 0 no better than a constant.

    Args:
        prediction: any shape, without gradient.
        target: same shape.

    >>> explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    tensor(0.7500)
    """
    tiny = torch.finfo(target.dtype).tiny
    if prediction.shape == target.shape and native.usable(prediction, target):
        return native.run("rl_explained_variance", [prediction, target], _flat(target), (tiny,), 1, ())[0]
    if not target.numel():
        return target.new_full((), float("nan"))
    spread = target.var(correction=0)
    return 1 - (target - prediction).var(correction=0) / spread.clamp_min(tiny)


def _flat(values: Tensor) -> tuple[int, int, int]:
    return 1, values.numel(), 1
