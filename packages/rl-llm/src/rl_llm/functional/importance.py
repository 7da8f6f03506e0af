"""Weights that correct for an inference engine whose log-probabilities differ from the trainer's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_llm.functional.aggregation import masked_token_mean
from rl_llm.functional.grpo import LOG_RATIO_LIMIT, token_log_ratio

__all__ = ["IMPORTANCE_LEVELS", "IMPORTANCE_MODES", "ImportanceWeights", "effective_share", "importance_weights"]

IMPORTANCE_MODES = ("truncate", "mask")
IMPORTANCE_LEVELS = ("token", "sequence")


class ImportanceWeights(NamedTuple):
    """Weights of tokens, and what is known about them; all detached.

    Attributes:
        weight: [*B, L], 1 outside of the mask.
        mean: scalar, mean of the ratios before they are cut; 1 where the engine agrees.
        ess: scalar in (0, 1], effective share of the tokens before the ratios are cut.
        cut: scalar, share of tokens whose ratio was truncated or masked.
    """

    weight: Tensor
    mean: Tensor
    ess: Tensor
    cut: Tensor


def effective_share(weight: Tensor, mask: Tensor) -> Tensor:
    r"""How many tokens the weights are worth, as a share of all: ``(sum w)^2 / (n sum w^2)``; 0 over no tokens.

    Kong, 1992, A Note on Importance Sampling using Standardized Weights.

    >>> effective_share(torch.tensor([1.0, 1.0, 7.0]), torch.tensor([True, True, False]))
    tensor(1.)
    """
    kept = torch.where(mask, weight, 0.0)
    squares = (mask.sum() * kept.square().sum()).clamp_min(torch.finfo(kept.dtype).tiny)
    return kept.sum().square() / squares


@torch.no_grad()
def importance_weights(
    old_log_prob: Tensor,
    engine_log_prob: Tensor,
    mask: Tensor,
    *,
    mode: str | None,
    level: str = "token",
    low: float | None = None,
    high: float | None = None,
    length_normalized: bool = True,
    limit: float = LOG_RATIO_LIMIT,
) -> ImportanceWeights:
    r"""The ratio of trainer to engine, cut at two thresholds.

    ::

        token       w_t = pi_old(o_t) / mu(o_t)
        sequence    w = exp(mean over t of log w_t), or of the sum
        truncate    min(max(w, low), high)
        mask        w where low <= w <= high, else 0

    Args:
        old_log_prob: [*B, L], the trainer's log-probabilities with the weights that sampled, pi_old.
        engine_log_prob: [*B, L], the engine's, mu.
        mask: bool [*B, L].
        mode: "truncate", "mask", or None: no correction, every weight is 1.
        level: "token", or "sequence": one weight for all tokens of a sequence.
        low: smallest ratio; None: no bound.
        high: largest ratio; None: no bound.
        length_normalized: for sequences: the mean of the log-ratios, which a longer answer does not enlarge; False:
            their sum, the exact ratio of the two probabilities.
        limit: log-ratios are kept within this distance of 0, before and after they are added up.

    Returns:
        The weights and their statistics. Over no tokens the statistics are 0.

    Raises:
        SpecError: there is no such mode or level.

    Yao et al., 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (truncation); Zheng et al.,
    2025, eq. 7, arXiv 2507.18071 (the mean).

    >>> old, engine = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
    >>> importance_weights(old, engine, torch.ones(1, 2, dtype=torch.bool), mode="truncate", high=3.0).weight
    tensor([[1., 3.]])
    """
    if level not in IMPORTANCE_LEVELS:
        raise SpecError(f"importance level is one of {', '.join(map(repr, IMPORTANCE_LEVELS))}; got {level!r}")
    if mode is None:
        ratio = torch.ones_like(old_log_prob)
        return ImportanceWeights(ratio, *_statistics(ratio, mask), ratio.new_zeros(()))
    if mode not in IMPORTANCE_MODES:
        raise SpecError(f"importance mode is one of {', '.join(map(repr, IMPORTANCE_MODES))} or None; got {mode!r}")
    log_ratio = token_log_ratio(old_log_prob, engine_log_prob, mask, limit)
    if level == "sequence":
        total = log_ratio.sum(-1, keepdim=True)
        total = total / mask.sum(-1, keepdim=True).clamp_min(1) if length_normalized else total
        log_ratio = torch.where(mask, total.clamp(-limit, limit), 0.0)
    ratio = log_ratio.exp()
    lowest, highest = 0.0 if low is None else low, float("inf") if high is None else high
    outside = ((ratio < lowest) | (ratio > highest)) & mask
    cut = ratio.clamp(lowest, highest) if mode == "truncate" else torch.zeros_like(ratio)
    weight = torch.where(outside, cut, ratio)
    return ImportanceWeights(weight, *_statistics(ratio, mask), masked_token_mean(outside.to(ratio.dtype), mask))


def _statistics(ratio: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return masked_token_mean(ratio, mask), effective_share(ratio, mask)
