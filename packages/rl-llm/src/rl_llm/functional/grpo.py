"""Ratios of two policies over the tokens of an answer, and the gains that GRPO and its relatives make of them."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, as_tensor, where

__all__ = [
    "cispo_gain",
    "clipped_gain",
    "clipped_ratio",
    "sequence_log_ratio",
    "sequence_mean_log_ratio",
    "token_log_ratio",
]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are kept within this distance of 0: beyond it exp overflows and its gradient is 0 times infinity."""


def token_log_ratio(log_prob: Tensor, old_log_prob: Tensor, mask: Tensor, limit: float = LOG_RATIO_LIMIT) -> Tensor:
    r"""The log of each token's ratio.

    .. math:: \log r_t = \log\pi(o_t | o_{<t}) - \log\pi_{old}(o_t | o_{<t})

    Args:
        log_prob: [*B, L], under the policy as it is now.
        old_log_prob: [*B, L], under the policy that the ratio is taken against.
        mask: bool [*B, L], True in tokens that count.
        limit: the largest absolute value; no gradient flows beyond it.

    Returns:
        [*B, L], 0 where the mask is False, whatever the inputs hold there.

    Shao et al., 2024, DeepSeekMath, eq. 3, arXiv 2402.03300.

    >>> import torch
    >>> mask = torch.tensor([True, False])
    >>> token_log_ratio(torch.tensor([-1.0, float("nan")]), torch.tensor([-1.5, 0.0]), mask)
    tensor([0.5000, 0.0000])
    """
    return where(mask, log_prob - old_log_prob, 0.0).clamp(-limit, limit)


def sequence_mean_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    r"""The log of a sequence's length-normalised ratio.

    .. math:: \log s = \frac{1}{|o|} \sum_t \log r_t

    Args:
        log_ratio: [*B, L], 0 outside of the mask (see :func:`token_log_ratio`).
        mask: bool [*B, L].

    Returns:
        [*B, 1]; 0 for a sequence without tokens.

    Zheng et al., 2025, Group Sequence Policy Optimization, eq. 7, arXiv 2507.18071.
    """
    return log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)


def sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    r"""The sequence's ratio at each token, in logs, so that each token carries its own share of the gradient.

    .. math:: \log s_t = \mathrm{sg}(\log s) + \log r_t - \mathrm{sg}(\log r_t)

    Its value is that of :func:`sequence_mean_log_ratio`; summed over the tokens and divided by their number, its
    gradient is too. Advantages may differ from token to token.

    Args:
        log_ratio: [*B, L], 0 outside of the mask.
        mask: bool [*B, L].

    Returns:
        [*B, L], 0 where the mask is False.

    Zheng et al., 2025, Group Sequence Policy Optimization, eq. 14 (GSPO-token), arXiv 2507.18071.
    """
    fixed = log_ratio.detach()
    return where(mask, sequence_mean_log_ratio(fixed, mask) + (log_ratio - fixed), 0.0)


def clipped_ratio(ratio: Tensor, advantage: Tensor, low: Any, high: Any, dual_clip: float | None = None) -> Tensor:
    """The factor of the advantage in :func:`clipped_gain`, with the same arguments.

    The sign of A decides which side of the clip can give the smaller product, so one clamp does it, which takes half
    the time of two products and a minimum.
    """
    bad = advantage < 0
    # As tensors of the ratio's dtype: of plain numbers `where` makes float32.
    low, high = (as_tensor(bound, dtype=ratio.dtype, device=ratio.device) for bound in (low, high))
    lowest = where(bad, low, -math.inf)
    highest = where(bad, math.inf if dual_clip is None else dual_clip, high)
    return ratio.clamp(lowest, highest)


def clipped_gain(ratio: Tensor, advantage: Tensor, low: Any, high: Any, dual_clip: float | None = None) -> Tensor:
    r"""The clipped surrogate, to be maximised; the two sides of the clip may differ.

    .. math:: \min(r A, \mathrm{clip}(r, 1 - \epsilon_{low}, 1 + \epsilon_{high}) A)

    Args:
        ratio: [*B, L].
        advantage: [*B, L] or [*B, 1].
        low: the smallest ratio, 1 - epsilon_low, a number or a scalar tensor.
        high: the largest ratio, 1 + epsilon_high, likewise.
        dual_clip: c > 1; where A < 0 the gain is not below c A, however large the ratio. None: no floor.

    Returns:
        [*B, L].

    Schulman et al., 2017, eq. 7, arXiv 1707.06347; the pair: Yu et al., 2025, DAPO, eq. 10, arXiv 2503.14476; the
    floor: Ye et al., 2019, Mastering Complex Control in MOBA Games with Deep RL, arXiv 1912.09729.

    >>> import torch
    >>> clipped_gain(torch.tensor([1.5, 0.5, 9.0]), torch.tensor([1.0, -1.0, -1.0]), 0.8, 1.28, dual_clip=3.0)
    tensor([ 1.2800, -0.8000, -3.0000])
    """
    return clipped_ratio(ratio, advantage, low, high, dual_clip) * advantage


def cispo_gain(ratio: Tensor, log_prob: Tensor, advantage: Tensor, low: Any, high: Any) -> Tensor:
    r"""The policy gradient with a clipped importance weight that carries no gradient, to be maximised.

    .. math:: \mathrm{sg}(\mathrm{clip}(r, 1 - \epsilon_{low}, 1 + \epsilon_{high})) A \log\pi

    A token whose ratio is clipped keeps its gradient, only its weight is bounded.

    Args:
        ratio: [*B, L].
        log_prob: [*B, L], finite.
        advantage: [*B, L] or [*B, 1].
        low: the smallest weight, a number or a scalar tensor.
        high: the largest weight, likewise.

    Returns:
        [*B, L].

    MiniMax, 2025, MiniMax-M1, eq. 4 and 5, arXiv 2506.13585.
    """
    return ratio.detach().clamp(low, high) * advantage * log_prob
