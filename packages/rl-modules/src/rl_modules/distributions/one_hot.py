"""Categorical distribution whose values are one-hot rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Size, Tensor
from torch.distributions import OneHotCategorical as TorchOneHotCategorical

from rl_modules.distributions.base import PolicyDistribution, check_event
from rl_modules.distributions.categorical import Categorical

__all__ = ["OneHotCategorical"]


class OneHotCategorical(PolicyDistribution, TorchOneHotCategorical):
    """Categorical distribution over the one-hot rows of ``n`` columns.

    ``sample`` and ``mode`` are int64 rows. ``has_rsample`` is False, so that a policy acts with integers under any
    gradient mode; :meth:`rsample` offers the straight-through estimator on request.

    Args:
        logits: ``[*B, n]`` unnormalised log-probabilities.
        probs: ``[*B, n]`` non-negative weights. Exactly one of the two is given.
        validate_args: accepted for torch's signature; nothing is validated.

    >>> OneHotCategorical(logits=torch.tensor([0.0, 2.0, 1.0])).mode
    tensor([0, 1, 0])
    """

    has_rsample = False
    _categorical: Categorical

    def __init__(
        self, logits: Tensor | None = None, probs: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        self._set_categorical(Categorical(probs=probs, logits=logits))

    def _set_categorical(self, categorical: Categorical) -> None:
        self._categorical = categorical
        self._batch_shape = categorical.batch_shape
        self._event_shape = Size((categorical._num_events,))

    @property
    def mode(self) -> Tensor:
        """The row of the most probable category ``[*B, n]``, exactly one 1 also among equals."""
        return self._one_hot(self._categorical.mode)

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        """One-hot rows ``[*sample_shape, *B, n]``, int64."""
        return self._one_hot(self._categorical.draw(sample_shape, generator))

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        index, log_prob = self._categorical.sample_and_log_prob(sample_shape, generator)
        return self._one_hot(index), log_prob

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """One-hot rows in the parameters' type whose gradient is that of the probabilities (straight-through).

        Source: Bengio, Léonard, Courville 2013, arXiv 1308.3432, section 4.
        """
        probs = self._categorical.probs
        return self.draw(sample_shape).to(probs.dtype) + (probs - probs.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[..., *B]`` of one-hot rows ``[..., *B, n]`` of any dtype."""
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        # argmax has no kernel for bool
        return self._categorical._gather((value.to(torch.uint8) if value.dtype == torch.bool else value).argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def expand(self, batch_shape: Sequence[int], _instance: OneHotCategorical | None = None) -> OneHotCategorical:
        new = OneHotCategorical.__new__(OneHotCategorical)
        new._set_categorical(self._categorical.expand(batch_shape))
        return new

    def _one_hot(self, index: Tensor) -> Tensor:
        return F.one_hot(index, self._event_shape[0])
