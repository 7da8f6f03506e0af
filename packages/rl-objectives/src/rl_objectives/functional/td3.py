"""Twin delayed deterministic policy gradients: smoothed target actions, and the weight against cloning; per row."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cloning_weight", "smoothed_action"]


def smoothed_action(
    action: Tensor, noise: Tensor, noise_clip: float | Tensor, low: Tensor | float, high: Tensor | float
) -> Tensor:
    r"""The target policy's action with clipped noise, kept within the action's bounds.

    .. math:: \mathrm{clip}(a + \mathrm{clip}(\epsilon, -c, c), low, high)

    Args:
        action: [*B, A].
        noise: same shape, in the action's unit.
        noise_clip: c, at least 0, in the same unit.
        low: the action's lower bound, broadcasts to it.
        high: its upper bound, likewise.

    Returns:
        Same shape.

    Fujimoto et al., 2018, Addressing Function Approximation Error in Actor-Critic Methods, eq. 14, arXiv 1802.09477.

    >>> smoothed_action(torch.tensor([0.9, 0.0]), torch.tensor([0.3, -7.0]), 0.5, -1.0, 1.0)
    tensor([ 1.0000, -0.5000])
    """
    return _clipped(action + _clipped(noise, -noise_clip, noise_clip), low, high)


def cloning_weight(action_value: Tensor, alpha: float | Tensor) -> Tensor:
    r"""How much the values count beside a cloning loss: more, the smaller they are.

    .. math:: \lambda = \frac{\alpha}{\frac{1}{N} \sum_i |Q(s_i, a_i)|}

    Args:
        action_value: values of the rows that count, any shape.
        alpha: the wanted weight of values of size 1.

    Returns:
        A scalar without gradient.

    Fujimoto and Gu, 2021, A Minimalist Approach to Offline Reinforcement Learning, eq. 4 and 5, arXiv 2106.06860.

    >>> cloning_weight(torch.tensor([1.0, -3.0]), 2.5)
    tensor(1.2500)
    """
    size = action_value.detach().abs().mean()
    return alpha / size.clamp_min(torch.finfo(size.dtype).eps)


def _clipped(values: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Clamp, which takes two numbers or two tensors."""
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        return values.clamp(low, high)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return values.clamp(*(torch.as_tensor(bound, device=values.device) for bound in (low, high)))
    return values.clamp(low, high)
