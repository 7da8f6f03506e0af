"""Categorical distribution whose values are one-hot rows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Generator, Size, Tensor
from torch.distributions import OneHotCategorical as TorchOneHotCategorical

from rl_modules.distributions.base import PolicyDistribution, check_event
from rl_modules.distributions.categorical import Categorical

__all__ = ["OneHotCategorical", "ReparamGradientStrategy"]


class ReparamGradientStrategy(Enum):
    """How a one-hot sample passes gradients on to the logits. The value is a one-hot row in either case.

    PassThrough: the gradient of the probabilities (Bengio, Léonard, Courville 2013, arXiv 1308.3432, section 4; used by
    Dreamer v2, arXiv 2010.02193, algorithm 1). RelaxedOneHot: that of a Gumbel-softmax sample, whose largest entry is
    the one (Jang, Gu, Poole 2017, arXiv 1611.01144, section 2.2), at temperature 1.
    """

    PassThrough = "pass_through"
    RelaxedOneHot = "relaxed_one_hot"


class OneHotCategorical(PolicyDistribution, TorchOneHotCategorical):
    """Categorical distribution over the one-hot rows of ``n`` columns.

    ``sample`` and ``mode`` are int64 rows. ``has_rsample`` is False unless a ``grad_method`` is given, so that a policy
    acts with integers under any gradient mode; :meth:`rsample` passes gradients straight through in either case.

    Args:
        logits: ``[*B, n]`` unnormalised log-probabilities.
        probs: ``[*B, n]`` non-negative weights. Exactly one of the two is given.
        grad_method: how samples pass gradients on; where it is given, ``has_rsample`` is True and a policy's samples
            are rows in the logits' type with gradients while these are recorded.
        validate_args: accepted for torch's signature; nothing is validated.

    >>> OneHotCategorical(logits=torch.tensor([0.0, 2.0, 1.0])).mode
    tensor([0, 1, 0])
    """

    has_rsample = False
    grad_method = ReparamGradientStrategy.PassThrough
    _categorical: Categorical

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        validate_args: bool | None = None,
        grad_method: ReparamGradientStrategy | None = None,
    ) -> None:
        self._set_categorical(Categorical(probs=probs, logits=logits), grad_method)

    def _set_categorical(self, categorical: Categorical, grad_method: ReparamGradientStrategy | None) -> None:
        if grad_method is not None:
            self.grad_method = ReparamGradientStrategy(grad_method)
            self.has_rsample = True
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
        """One-hot rows in the parameters' type, with gradients by ``grad_method``."""
        return self._with_gradient(sample_shape, None)[0]

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Such rows ``[*sample_shape, *B, n]``, and the log-probability ``[*sample_shape, *B]`` of their categories."""
        value, index = self._with_gradient(sample_shape, generator)
        return value, self._categorical._gather(index)

    def _with_gradient(self, sample_shape: Sequence[int], generator: Generator | None) -> tuple[Tensor, Tensor]:
        if self.grad_method is ReparamGradientStrategy.PassThrough:
            soft = self._categorical.probs
            index = self._categorical.draw(sample_shape, generator)
        else:
            logits = self._categorical.logits
            clock = torch.empty((*sample_shape, *logits.shape), dtype=logits.dtype, device=logits.device)
            soft = (logits - clock.exponential_(generator=generator).log()).softmax(-1)
            index = soft.argmax(-1)
        hard = self._one_hot(index).to(soft.dtype)
        return hard + (soft - soft.detach()), index

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[..., *B]`` of one-hot rows ``[..., *B, n]`` of any dtype."""
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        # argmax has no kernel for bool
        return self._categorical._gather((value.to(torch.uint8) if value.dtype == torch.bool else value).argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def expand(self, batch_shape: Sequence[int], _instance: OneHotCategorical | None = None) -> OneHotCategorical:
        new = OneHotCategorical.__new__(OneHotCategorical)
        new._set_categorical(self._categorical.expand(batch_shape), self.grad_method if self.has_rsample else None)
        return new

    def _one_hot(self, index: Tensor) -> Tensor:
        return F.one_hot(index, self._event_shape[0])
