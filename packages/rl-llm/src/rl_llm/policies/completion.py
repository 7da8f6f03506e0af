"""``Completion``: what an engine generated after one prompt."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Completion"]


@dataclass(frozen=True)
class Completion:
    """Tokens after a prompt, the end-of-text token among them."""

    tokens: Tensor
    """int64 [R]."""
    log_probs: Tensor
    """float32 [R]: of the distribution that each token was drawn from; 0 where the policy is greedy."""
    stopped: bool
    """Whether it ended by itself (an end-of-text token, a stop string) rather than by a limit of length."""
