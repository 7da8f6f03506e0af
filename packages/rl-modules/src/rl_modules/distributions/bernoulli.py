"""Independent switches, each on or off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from rl_modules.distributions.base import PolicyDistribution, check_event
from rl_modules.distributions.gaussian import event_sum, split_shape

__all__ = ["IndependentBernoulli"]


class IndependentBernoulli(PolicyDistribution):
    """Vectors of zeros and ones with independent elements; the log-probability is that of the vector.

    Args:
        logits: ``[*B, *event]`` log-odds of a one.
        event_dims: number of trailing dims of one action.

    >>> dist = IndependentBernoulli(torch.tensor([2.0, -2.0]))
    >>> dist.mode, dist.log_prob(torch.tensor([1, 0]))
    (tensor([1, 0]), tensor(-0.2539))
    """

    has_rsample = False
    arg_constraints: ClassVar[dict[str, Constraint]] = {"logits": constraints.real}

    def __init__(self, logits: Tensor, event_dims: int = 1) -> None:
        self.logits = logits
        self._event_dims = event_dims
        self._batch_shape, self._event_shape = split_shape(logits.shape, event_dims)

    @property
    def probs(self) -> Tensor:
        """Probabilities of a one ``[*B, *event]``."""
        return self.logits.sigmoid()

    @property
    def mean(self) -> Tensor:
        """Probabilities of a one ``[*B, *event]``."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """One where it is more probable than zero, int64 ``[*B, *event]``."""
        return (self.logits > 0).long()

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        probs = self.probs.detach()
        shape = Size((*sample_shape, *probs.shape))
        return (torch.rand(shape, dtype=probs.dtype, device=probs.device, generator=generator) < probs).long()

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[..., *B]`` of zeros and ones ``[..., *B, *event]`` of any dtype."""
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        return event_sum(F.logsigmoid(torch.where(value.bool(), self.logits, -self.logits)), self._event_dims)

    def entropy(self) -> Tensor:
        """Entropy ``[*B]`` in nats."""
        probs = self.probs
        per_element = F.softplus(self.logits) - probs * self.logits
        return event_sum(per_element, self._event_dims)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> IndependentBernoulli:
        return IndependentBernoulli(self.logits.expand(*batch_shape, *self._event_shape), self._event_dims)
