"""Distributions that put all their mass on one value, for deterministic policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Size, Tensor

from rl_modules.distributions.base import PolicyDistribution, check_event
from rl_modules.distributions.gaussian import split_shape
from rl_modules.distributions.interval import Bound, Interval

__all__ = ["Delta", "TanhDelta"]


class Delta(PolicyDistribution):
    """The distribution of a constant.

    Its log-probability is +inf at the value (up to the tolerances) and -inf elsewhere.

    Args:
        param: ``[*B, *event]`` the value.
        atol: absolute tolerance of ``log_prob``.
        rtol: relative tolerance of ``log_prob``.
        batch_shape: batch shape; all but the last dim of param where both shapes are left out.
        event_shape: event shape; the last dim of param where left out.

    >>> dist = Delta(torch.tensor([1.0, 2.0]))
    >>> dist.sample(), dist.log_prob(torch.tensor([1.0, 2.0])), dist.log_prob(torch.tensor([1.0, 3.0]))
    (tensor([1., 2.]), tensor(inf), tensor(-inf))
    """

    has_rsample = True
    has_entropy = False

    def __init__(
        self,
        param: Tensor,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        batch_shape: Sequence[int] | None = None,
        event_shape: Sequence[int] | None = None,
    ) -> None:
        self.param, self.atol, self.rtol = param, atol, rtol
        if event_shape is not None:
            event_dims = len(event_shape)
        elif batch_shape is not None:
            event_dims = param.ndim - len(batch_shape)
        else:
            event_dims = min(1, param.ndim)
        self._batch_shape, self._event_shape = split_shape(param.shape, event_dims)
        if (batch_shape is not None and Size(batch_shape) != self._batch_shape) or (
            event_shape is not None and Size(event_shape) != self._event_shape
        ):
            raise ValueError(
                f"Delta got batch_shape={batch_shape} and event_shape={event_shape}, which do not make up the shape "
                f"{list(param.shape)} of its value."
            )

    @property
    def mode(self) -> Tensor:
        """The value ``[*B, *event]``."""
        return self.param

    @property
    def mean(self) -> Tensor:
        """The value ``[*B, *event]``."""
        return self.mode

    @property
    def median(self) -> Tensor:
        """The value ``[*B, *event]``."""
        return self.mode

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        return self.rsample(sample_shape).detach()

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        value = self.mode
        return value.expand(*sample_shape, *value.shape) if len(sample_shape) else value

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """The value with its gradient, and its log-probability (+inf)."""
        value = self.rsample(sample_shape)
        return value, self.log_prob(value)

    def log_prob(self, value: Tensor) -> Tensor:
        """+inf at the value, -inf elsewhere; ``[..., *B]``."""
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        center = self.mode
        same = (value - center).abs() <= self.atol + self.rtol * center.abs()
        if self._event_shape:
            same = same.flatten(-len(self._event_shape)).all(-1)
        infinity = torch.full(same.shape, float("inf"), dtype=center.dtype, device=center.device)
        return torch.where(same, infinity, -infinity)

    def entropy(self) -> Tensor:
        """Not defined for a point mass."""
        raise NotImplementedError("A point mass has no finite differential entropy.")

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Delta:
        shape = (*batch_shape, *self._event_shape)
        return Delta(self.mode.expand(shape), self.atol, self.rtol, event_shape=self._event_shape)


class TanhDelta(Delta):
    """A constant squashed into the bounds of an action: ``center + half * tanh(param)``.

    Args:
        param: ``[*B, A]`` the value before the squash.
        low: lower bound of the action: int, float or tensor that broadcasts to the action.
        high: upper bound, likewise.
        event_dims: number of trailing dims of one action; at most the dims of param.
        atol: absolute tolerance of ``log_prob``.
        rtol: relative tolerance of ``log_prob``.
        interval: the prepared bounds instead of low and high (see :meth:`bind`).

    >>> TanhDelta(torch.zeros(2), low=0, high=4).mode
    tensor([2., 2.])
    """

    def __init__(
        self,
        param: Tensor,
        low: Bound = -1.0,
        high: Bound = 1.0,
        event_dims: int = 1,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        *,
        interval: Interval | None = None,
    ) -> None:
        prepared = interval if interval is not None else Interval.of(low, high)
        squashed = prepared.like(param).from_unit(param.tanh())
        super().__init__(squashed, atol, rtol, event_shape=param.shape[param.ndim - min(event_dims, param.ndim) :])

    @classmethod
    def bind(cls, **distribution_kwargs: Any) -> Callable[..., PolicyDistribution]:
        low, high = distribution_kwargs.pop("low", -1.0), distribution_kwargs.pop("high", 1.0)
        return partial(cls, interval=Interval.of(low, high), **distribution_kwargs)
