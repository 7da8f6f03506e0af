"""Quantile regression of value distributions on tensors (QR-DQN, IQN)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import LossError, SpecError

__all__ = ["quantile_huber_loss", "quantile_midpoints"]


def quantile_midpoints(count: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    r"""The quantile levels that ``count`` equally likely atoms stand for, [count].

    .. math:: \hat\tau_i = \frac{2 i - 1}{2 N}

    Dabney et al., 2017, Distributional Reinforcement Learning with Quantile Regression, lemma 2, arXiv 1710.10044.

    >>> quantile_midpoints(2)
    tensor([0.2500, 0.7500])
    """
    return (torch.arange(count, dtype=dtype or torch.get_default_dtype(), device=device) + 0.5) / count


def quantile_huber_loss(quantiles: Tensor, levels: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    r"""The distance of predicted quantiles from samples of the target distribution.

    .. math::
        \sum_i \frac{1}{M} \sum_j |\tau_i - 1\{u_{ij} < 0\}| \; L_\kappa(u_{ij}), \qquad u_{ij} = y_j - \theta_i

    with Huber's loss ``L(u) = u^2 / 2`` where ``|u| <= kappa``, else ``kappa (|u| - kappa / 2)``.

    Args:
        quantiles: theta, [*B, N].
        levels: tau, [N] or [*B, N], in (0, 1).
        target: y, [*B, M]: equally likely samples.
        kappa: Huber's threshold; 0 is the quantile regression loss itself, with ``L(u) = |u|``.

    Returns:
        [*B, 1].

    Raises:
        LossError: shapes do not fit.
        SpecError: kappa is negative.

    Dabney et al., 2017, eq. 9, 10 and algorithm 1, arXiv 1710.10044.

    >>> quantile_huber_loss(torch.tensor([0.0]), torch.tensor([0.25]), torch.tensor([3.0, -1.0]))
    tensor([0.5000])
    """
    if kappa < 0:
        raise SpecError(f"kappa is at least 0; got {kappa}")
    if quantiles.shape[:-1] != target.shape[:-1] or levels.shape not in (quantiles.shape, quantiles.shape[-1:]):
        raise LossError(
            f"quantiles {list(quantiles.shape)}, their levels {list(levels.shape)} and targets {list(target.shape)} "
            "must be [*B, N], [N] or [*B, N], and [*B, M]"
        )
    error = target.unsqueeze(-2) - quantiles.unsqueeze(-1)
    size = error.abs()
    if kappa:
        # Both branches of Huber's loss at once: quadratic up to kappa, linear beyond.
        inner = size.clamp_max(kappa)
        size = inner * (size - 0.5 * inner)
    weight = (levels.unsqueeze(-1) - (error.detach() < 0).to(error.dtype)).abs()
    return (weight * size).mean(-1).sum(-1, keepdim=True)
