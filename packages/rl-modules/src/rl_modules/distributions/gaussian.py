"""Diagonal normal distribution over unbounded actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Independent, Normal

from rl_modules.distributions.base import PolicyDistribution, check_event

__all__ = ["HALF_LOG_TWO_PI", "IndependentNormal", "event_sum", "squash_loc", "standard_noise"]

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class IndependentNormal(PolicyDistribution, Independent):
    """Normal distribution with independent elements, of which the last ``event_dim`` dims are one action.

    Args:
        loc: ``[*B, *event]`` mean.
        scale: standard deviation, broadcast with loc.
        upscale: with ``tanh_loc``, the mean is kept within (-upscale, upscale).
        tanh_loc: map the mean by ``upscale * tanh(loc / upscale)``.
        event_dim: number of trailing dims of one action; at most the dims of loc.
        validate_args: accepted for torch's signature; nothing is validated.

    >>> dist = IndependentNormal(torch.zeros(3), torch.ones(3))
    >>> dist.log_prob(torch.zeros(3)), dist.entropy()
    (tensor(-2.7568), tensor(4.2568))
    """

    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        upscale: float | Tensor = 5.0,
        tanh_loc: bool = False,
        event_dim: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale = same_shape(squash_loc(loc, upscale) if tanh_loc else loc, scale)
        self.reinterpreted_batch_ndims = min(event_dim, self.loc.ndim)
        self._batch_shape, self._event_shape = split_shape(self.loc.shape, self.reinterpreted_batch_ndims)
        self._base: Normal | None = None
        self._log: Tensor | None = None

    @property
    def base_dist(self) -> Normal:
        """The torch Normal of the elements (torch's KL divergence reads it)."""
        if self._base is None:
            self._base = Normal(self.loc, self.scale, validate_args=False)
        return self._base

    @base_dist.setter
    def base_dist(self, base: Normal) -> None:
        self._base = base

    @property
    def mode(self) -> Tensor:
        """The mean ``[*B, *event]``."""
        return self.loc

    @property
    def mean(self) -> Tensor:
        """The mean ``[*B, *event]``."""
        return self.loc

    @property
    def median(self) -> Tensor:
        """The mean ``[*B, *event]``."""
        return self.loc

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        with torch.no_grad():
            return self.loc + self.scale * standard_noise(self.loc, sample_shape, generator)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        return self.loc + self.scale * standard_noise(self.loc, sample_shape, None)

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A reparametrised sample ``[*sample_shape, *B, *event]`` and its log-probability ``[*sample_shape, *B]``."""
        noise = standard_noise(self.loc, sample_shape, generator)
        return torch.addcmul(self.loc, self.scale, noise), self._log_prob_of(noise)

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        noise = standard_noise(self.loc, sample_shape, generator)
        with torch.no_grad():
            value = torch.addcmul(self.loc, self.scale, noise)
        return value, self._log_prob_at(value)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density ``[..., *B]`` of values ``[..., *B, *event]``."""
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        return self._log_prob_at(value)

    def _log_prob_at(self, value: Tensor) -> Tensor:
        return self._log_prob_of((value - self.loc) / self.scale)

    def _log_prob_of(self, score: Tensor) -> Tensor:
        """The log-density by the standard score."""
        surprise = torch.addcmul(self._log_scale(), score, score, value=0.5)
        constant = -HALF_LOG_TWO_PI * math.prod(self._event_shape)
        return constant - event_sum(surprise, self.reinterpreted_batch_ndims)

    def _log_scale(self) -> Tensor:
        """The scale's logarithm, taken once: density and entropy share it."""
        if self._log is None or (torch.is_grad_enabled() and self.scale.requires_grad and not self._log.requires_grad):
            self._log = self.scale.log()
        return self._log

    def entropy(self) -> Tensor:
        """Entropy ``[*B]`` in nats."""
        constant = (0.5 + HALF_LOG_TWO_PI) * math.prod(self._event_shape)
        return event_sum(self._log_scale(), self.reinterpreted_batch_ndims) + constant

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> IndependentNormal:
        shape = (*batch_shape, *self._event_shape)
        return IndependentNormal(
            self.loc.expand(shape), self.scale.expand(shape), event_dim=self.reinterpreted_batch_ndims
        )


def squash_loc(loc: Tensor, upscale: float | Tensor) -> Tensor:
    """``upscale * tanh(loc / upscale)``: a mean within (-upscale, upscale), about the identity near 0."""
    if isinstance(upscale, Tensor):
        upscale = upscale.to(loc)
    return (loc / upscale).tanh() * upscale


def same_shape(loc: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Location and scale as tensors of one shape."""
    if not isinstance(scale, Tensor):
        scale = torch.full_like(loc, scale)
    if loc.shape == scale.shape:
        return loc, scale
    wide_loc, wide_scale = torch.broadcast_tensors(loc, scale)
    return wide_loc, wide_scale


def split_shape(shape: Size, event_dims: int) -> tuple[Size, Size]:
    """The batch shape and the event shape."""
    cut = len(shape) - event_dims
    return shape[:cut], shape[cut:]


def standard_noise(like: Tensor, sample_shape: Sequence[int], generator: Generator | None) -> Tensor:
    """Standard normal noise ``[*sample_shape, *like.shape]`` in the type and on the device of a tensor."""
    if generator is None and not len(sample_shape):
        return torch.randn_like(like)
    shape = (*sample_shape, *like.shape)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def event_sum(per_element: Tensor, event_dims: int) -> Tensor:
    """The sum over the last dims of one action."""
    if event_dims == 1:
        return per_element.sum(-1)
    return per_element.sum(tuple(range(-event_dims, 0))) if event_dims else per_element
