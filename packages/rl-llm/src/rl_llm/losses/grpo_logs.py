"""What GRPO logs: how far the policy has moved from the one that sampled, and what the batch was like."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_llm.functional.importance import ImportanceWeights

__all__ = ["answer_logs", "importance_logs", "ratio_logs"]


@torch.no_grad()
def ratio_logs(
    ratio: Tensor, log_ratio: Tensor, mask: Tensor, count: Tensor, low: Tensor, high: Tensor
) -> dict[str, Tensor]:
    """Statistics of the ratios over the tokens that count; all 0 over no tokens.

    Args:
        ratio: [*B, L], 1 outside of the mask.
        log_ratio: [*B, L], token by token, 0 outside of the mask.
        mask: bool [*B, L].
        count: the number of tokens that count, at least 1.
        low: the smallest ratio that is not clipped.
        high: the largest one.

    Returns:
        ``clip_fraction``, the share of ratios outside of the clip range; ``kl_approx``, -mean log r, estimates
        KL(pi_old || pi); ``ESS``, (sum r)^2 / (n sum r^2); ``mean_ratio``; ``max_ratio``.
    """
    ratio = ratio.detach()
    kept = torch.where(mask, ratio, 0.0).flatten()
    total, squares = kept.sum(), kept.dot(kept)
    return {
        # A ratio outside of the mask is 1, which no clip range leaves out.
        "clip_fraction": (ratio.clamp(low, high) != ratio).sum() / count,
        "kl_approx": -log_ratio.detach().sum() / count,
        "ESS": total.square() / (count * squares).clamp_min(torch.finfo(kept.dtype).tiny),
        "mean_ratio": total / count,
        "max_ratio": kept.max() if kept.numel() else total,
    }


@torch.no_grad()
def importance_logs(weights: ImportanceWeights | None, like: Tensor) -> dict[str, Tensor]:
    """Statistics of the weights against the engine; those of weights of 1 where there are none."""
    if weights is None:
        one = like.new_ones(())
        return {"importance_mean": one, "importance_ess": one, "importance_cut": like.new_zeros(())}
    return {"importance_mean": weights.mean, "importance_ess": weights.ess, "importance_cut": weights.cut}


@torch.no_grad()
def answer_logs(answer: Tensor, whole: Tensor | None, like: Tensor) -> dict[str, Tensor]:
    """``answer_length``, the mean number of tokens of all answers, and ``cut_answers``, the share that is left out.

    Args:
        answer: bool [*B, L], the tokens of all answers; rows without tokens do not count.
        whole: bool [*B], answers that are trained; None: all of them.
        like: gives the dtype.
    """
    lengths = answer.sum(-1)
    answered = lengths > 0
    count = answered.sum().clamp_min(1)
    cut = like.new_zeros(()) if whole is None else (answered & ~whole).sum() / count
    return {"answer_length": lengths.sum() / count, "cut_answers": cut}
