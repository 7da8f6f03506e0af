"""Estimators of the divergence of two policies from one sampled token each, over the tokens of an answer."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_llm.functional.aggregation import masked_token_mean
from rl_llm.functional.grpo import LOG_RATIO_LIMIT

__all__ = ["KL_ESTIMATORS", "kl_estimate", "kl_tokens"]

KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_tokens(
    log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor, estimator: str = "k3", limit: float = LOG_RATIO_LIMIT
) -> Tensor:
    r"""An estimate of KL(pi || pi_ref) at each token, the token being drawn from pi.

    With :math:`d = \log\pi_{ref} - \log\pi`::

        k1 = -d             unbiased, may be negative; as a loss its expected gradient is 0
        k2 = d^2 / 2        biased, low variance; its gradient is that of the KL
        k3 = e^d - 1 - d    unbiased, never negative

    Args:
        log_prob: [*B, L].
        ref_log_prob: [*B, L].
        mask: bool [*B, L], the tokens of the answer.
        estimator: "k1", "k2" or "k3".
        limit: d is kept within this distance of 0.

    Returns:
        [*B, L], 0 where the mask is False, whatever the inputs hold there.

    Raises:
        SpecError: there is no such estimator.

    Schulman, 2020, Approximating KL Divergence (joschu.net/blog/kl-approx.html); k3 as a loss: Shao et al., 2024,
    DeepSeekMath, eq. 4, arXiv 2402.03300.
    """
    d = torch.where(mask, ref_log_prob - log_prob, 0.0).clamp(-limit, limit)
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d.square() / 2
    if estimator == "k3":
        return d.expm1() - d
    raise SpecError(f"kl_estimator is one of {', '.join(map(repr, KL_ESTIMATORS))}; got {estimator!r}")


def kl_estimate(log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor, estimator: str = "k3") -> Tensor:
    """The mean of :func:`kl_tokens` over the tokens of the answers, a scalar: prompts and padding do not dilute it.

    >>> log_prob, ref = torch.tensor([[0.0, -1.0, -2.0]]), torch.tensor([[0.0, -1.0, -2.5]])
    >>> kl_estimate(log_prob, ref, torch.tensor([[False, True, True]]), "k1")
    tensor(0.2500)
    """
    return masked_token_mean(kl_tokens(log_prob, ref_log_prob, mask, estimator), mask)
