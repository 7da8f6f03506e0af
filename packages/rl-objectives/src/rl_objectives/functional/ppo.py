"""The surrogate objectives of trust-region methods (TRPO, PPO), and what one logs beside them; nothing is reduced."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import LossError
from rl_objectives.functional.standardize import standardize
from rl_objectives.functional.statistics import effective_sample_size, explained_variance

__all__ = [
    "clipped_surrogate",
    "effective_sample_size",
    "explained_variance",
    "kl_penalized_surrogate",
    "standardize",
    "surrogate",
]


def surrogate(ratio: Tensor, advantage: Tensor) -> Tensor:
    """The importance-weighted advantage ``r A``, to be maximised.

    Args:
        ratio: pi(a|s) / pi_old(a|s), any shape.
        advantage: same shape.

    Returns:
        Same shape.

    Raises:
        LossError: the shapes differ.

    Schulman et al., 2015, Trust Region Policy Optimization, eq. 14, arXiv 1502.05477.
    """
    _same_shape(ratio, advantage)
    return ratio * advantage


def kl_penalized_surrogate(ratio: Tensor, advantage: Tensor, kl: Tensor, beta: Tensor | float) -> Tensor:
    """The importance-weighted advantage less a penalty, ``r A - beta KL``, to be maximised.

    Args:
        ratio: pi(a|s) / pi_old(a|s), any shape.
        advantage: same shape.
        kl: KL(pi_old || pi) of each row, same shape, in nats.
        beta: weight of the penalty, a scalar >= 0.

    Returns:
        Same shape.

    Raises:
        LossError: the shapes differ.

    Schulman et al., 2017, Proximal Policy Optimization Algorithms, eq. 8, arXiv 1707.06347.
    """
    _same_shape(ratio, advantage)
    _same_shape(kl, advantage, "kl")
    return ratio * advantage - beta * kl


def clipped_surrogate(ratio: Tensor, advantage: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    r"""The clipped surrogate, to be maximised.

    .. math:: \min(r A, \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A)

    Args:
        ratio: pi(a|s) / pi_old(a|s), any shape.
        advantage: same shape.
        low: the smallest ratio, 1 - epsilon, a number or a scalar tensor.
        high: the largest ratio, 1 + epsilon, likewise.

    Returns:
        Same shape.

    Raises:
        LossError: the shapes of ratio and advantage differ.

    Schulman et al., 2017, Proximal Policy Optimization Algorithms, eq. 7, arXiv 1707.06347.

    >>> low, high = torch.tensor(0.8), torch.tensor(1.2)
    >>> clipped_surrogate(torch.tensor([1.5, 1.5, 0.5]), torch.tensor([1.0, -1.0, -1.0]), low, high)
    tensor([ 1.2000, -1.5000, -0.8000])
    """
    _same_shape(ratio, advantage)
    return torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)  # type: ignore[arg-type]


def _same_shape(values: Tensor, advantage: Tensor, name: str = "ratio") -> None:
    if values.shape != advantage.shape:
        raise LossError(
            f"{name} {list(values.shape)} and advantage {list(advantage.shape)} must have one shape; they would be "
            "broadcast against each other's rows"
        )
