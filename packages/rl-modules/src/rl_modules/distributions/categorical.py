"""Categorical distribution with a fast draw and no validation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions.utils import probs_to_logits

from rl_modules.distributions.base import PolicyDistribution, check_event, upcast_half

__all__ = ["Categorical"]


class Categorical(PolicyDistribution, TorchCategorical):
    """Categorical distribution over ``0 .. n - 1``.

    A draw is the winner of an exponential race, ``argmax(p / E)`` with ``E ~ Exp(1)``: the distribution of
    ``torch.multinomial`` at a third of its cost for a batch of one.

    Args:
        probs: ``[*B, n]`` non-negative weights; normalised here.
        logits: ``[*B, n]`` unnormalised log-probabilities. Exactly one of the two is given.
        validate_args: accepted for torch's signature; nothing is validated.

    Raises:
        ValueError: if both or none of probs and logits are given, or they have no dimension.

    >>> dist = Categorical(logits=torch.tensor([0.0, float("-inf"), 0.0]))
    >>> dist.probs, dist.mode, dist.entropy()
    (tensor([0.5000, 0.0000, 0.5000]), tensor(0), tensor(0.6931))
    """

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        raw = logits if probs is None else probs
        if raw is None or (probs is not None and logits is not None):
            raise ValueError(f"{type(self).__name__} takes exactly one of probs and logits.")
        shape = raw.shape
        if not shape:
            raise ValueError(f"{type(self).__name__} needs a last dimension, the categories; got a scalar.")
        self._raw = raw
        self._num_events = shape[-1]
        self._batch_shape = shape[:-1]
        self._event_shape = Size()
        self._logits: Tensor | None = None
        self._probs: Tensor | None = None if probs is None else probs / probs.sum(-1, keepdim=True)

    @property
    def logits(self) -> Tensor:
        """Normalised log-probabilities ``[*B, n]``."""
        if self._logits is None:
            self._logits = self._raw.log_softmax(-1) if self._probs is None else probs_to_logits(self._probs)
        return self._logits

    @property
    def probs(self) -> Tensor:
        """Probabilities ``[*B, n]``."""
        if self._probs is None:
            self._probs = self.logits.exp()
        return self._probs

    @property
    def _param(self) -> Tensor:  # type: ignore[override]
        return self._raw

    @property
    def mode(self) -> Tensor:
        """The most probable category ``[*B]``, the first one of equals."""
        return self._raw.argmax(-1)

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        """Categories ``[*sample_shape, *B]``, int64."""
        probs = self.probs
        if probs.requires_grad:
            probs = probs.detach()
        probs = upcast_half(probs)
        if len(sample_shape):
            probs = probs.expand(*sample_shape, *probs.shape)
        clock = torch.empty_like(probs)
        if generator is None:
            clock.exponential_()
        else:
            clock.exponential_(generator=generator)
        return (probs / clock).argmax(-1)

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        value = self.draw(sample_shape, generator)
        return value, self._gather(value)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of categories.

        Args:
            value: ``[..., *B]`` categories.

        Returns:
            ``[..., *B]``; -inf for a category of probability zero.

        Raises:
            ValueError: if the shape of the value does not end with ``[*B]``.
        """
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        return self._gather(value.long())

    def _gather(self, value: Tensor) -> Tensor:
        logits = self.logits
        if value.shape != self._batch_shape:
            logits = logits.expand(*value.shape, self._num_events)
        return logits.gather(-1, value.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropy ``[*B]`` in nats; finite, with finite gradients, where some probabilities are zero."""
        logits = self.logits
        return -(self.probs * logits.clamp_min(torch.finfo(logits.dtype).min)).sum(-1)

    def expand(self, batch_shape: Sequence[int], _instance: Categorical | None = None) -> Categorical:
        shape = (*batch_shape, self._num_events)
        if self._probs is not None and self._logits is None:
            return Categorical(probs=self._probs.expand(shape))
        return Categorical(logits=self.logits.expand(shape))
