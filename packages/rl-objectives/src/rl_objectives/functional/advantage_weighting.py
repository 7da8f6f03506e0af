"""Regression on a dataset's actions, weighted by how good they were: expectiles of values, exponential weights."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["advantage_weight", "expectile_loss"]


def expectile_loss(error: Tensor, expectile: float | Tensor) -> Tensor:
    r"""The asymmetric squared error whose minimiser is an expectile.

    .. math:: L_2^\tau(u) = |\tau - 1(u < 0)| u^2

    Args:
        error: target less prediction, u, any shape.
        expectile: tau, in (0, 1); with 0.5 it is half the squared error, near 1 the prediction nears the maximum.

    Returns:
        Same shape.

    Kostrikov et al., 2021, Offline Reinforcement Learning with Implicit Q-Learning, eq. 3 to 5, arXiv 2110.06169.

    >>> expectile_loss(torch.tensor([2.0, -2.0]), 0.75)
    tensor([3., 1.])
    """
    weight = torch.where(error < 0, 1 - expectile, expectile)
    return weight.to(error.dtype) * error.square()


def advantage_weight(advantage: Tensor, inverse_temperature: float | Tensor, maximum: float = 100.0) -> Tensor:
    r"""The weight of an action in advantage-weighted regression.

    .. math:: \min(\exp(\beta A), w_{max})

    The exponent is bounded, not its result, so that no advantage overflows.

    Args:
        advantage: A, any shape.
        inverse_temperature: beta, at least 0: 0 clones the data, a large one takes the best actions only.
        maximum: w_max, above 0.

    Returns:
        Same shape, without gradient.

    Peng et al., 2019, Advantage-Weighted Regression: Simple and Scalable Off-Policy Reinforcement Learning, arXiv
    1910.00177, algorithm 1.

    >>> advantage_weight(torch.tensor([0.0, 1.0, 1e6]), 2.0, maximum=100.0)
    tensor([  1.0000,   7.3891, 100.0000])
    """
    limit = torch.as_tensor(maximum, dtype=advantage.dtype, device=advantage.device).log()
    return (inverse_temperature * advantage.detach()).minimum(limit).exp()
