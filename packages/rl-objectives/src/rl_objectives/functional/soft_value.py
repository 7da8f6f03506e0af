"""Values with an entropy bonus (soft actor-critic), per row."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["expected_soft_value", "soft_value", "temperature_loss"]


def soft_value(action_value: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    r"""The value of a sampled action with the bonus for its surprise.

    .. math:: Q(s, a) - \alpha \log \pi(a|s)

    Averaged over actions of the policy it is the state's soft value; its negative is the policy's loss.

    Args:
        action_value: any shape.
        log_prob: same shape.
        alpha: temperature, a scalar.

    Returns:
        Same shape.

    Haarnoja et al., 2018, Soft Actor-Critic Algorithms and Applications, eq. 3 and 7, arXiv 1812.05905.

    >>> soft_value(torch.tensor([2.0]), torch.tensor([-1.0]), torch.tensor(0.5))
    tensor([2.5000])
    """
    return torch.addcmul(action_value, log_prob, alpha, value=-1)


def expected_soft_value(action_value: Tensor, probs: Tensor, alpha: Tensor, floor: float = 1e-8) -> Tensor:
    r"""The soft value of a state with discrete actions.

    .. math:: \sum_a \pi(a|s) [Q(s, a) - \alpha \log \pi(a|s)]

    Args:
        action_value: [*B, n].
        probs: pi, [*B, n]. An action of probability 0 (masked) counts for nothing, whatever its value.
        alpha: temperature, a scalar.
        floor: the smallest probability inside the logarithm.

    Returns:
        [*B, 1].

    Christodoulou, 2019, Soft Actor-Critic for Discrete Action Settings, eq. 10 and 12, arXiv 1910.07207.

    >>> expected_soft_value(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.5]), torch.tensor(0.0))
    tensor([2.])
    """
    action_value = action_value.masked_fill(probs == 0, 0)
    surprise = probs.clamp_min(floor).log()
    return (probs * soft_value(action_value, surprise, alpha)).sum(-1, keepdim=True)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float | Tensor) -> Tensor:
    r"""What moves the temperature until the policy has the entropy wanted.

    .. math:: -\log\alpha \, (\log \pi(a|s) + H)

    Args:
        log_alpha: a scalar; the only argument that gets a gradient.
        log_prob: any shape.
        target_entropy: H, in nats.

    Returns:
        The shape of ``log_prob``.

    Haarnoja et al., 2018, Soft Actor-Critic Algorithms and Applications, eq. 18, arXiv 1812.05905; with the logarithm
    in place of alpha, as is usual.

    >>> temperature_loss(torch.tensor(1.0), torch.tensor([-3.0]), 2.0)
    tensor([1.])
    """
    return -log_alpha * (log_prob.detach() + target_entropy)
