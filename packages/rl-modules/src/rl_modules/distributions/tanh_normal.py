"""Normal distribution squashed into the bounds of an action by tanh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Size, Tensor
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, Transform, TransformedDistribution

from rl_modules.distributions.base import PolicyDistribution, check_event
from rl_modules.distributions.gaussian import (
    HALF_LOG_TWO_PI,
    event_sum,
    same_shape,
    split_shape,
    squash_loc,
    standard_noise,
)
from rl_modules.distributions.interval import Bound, Interval

__all__ = ["TanhNormal"]

_LARGEST = {
    dtype: 1.0 - torch.finfo(dtype).eps / 2 for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""The largest value below 1 of each dtype."""

_LARGEST_ATANH = {dtype: math.atanh(largest) for dtype, largest in _LARGEST.items()}


class TanhNormal(PolicyDistribution, TransformedDistribution):
    r"""The distribution of ``T(u) = center + half * tanh(u)`` with ``u ~ Normal(loc, scale)``.

    The density follows from the change of variables, computed in log space from the value *before* the squash:

    .. math:: \log p(a) = \sum_i \log N(u_i) - \log half_i - 2 (\log 2 - u_i - softplus(-2 u_i))

    (Haarnoja et al. 2018, arXiv 1801.01290, appendix C.) ``rsample_and_log_prob`` and ``sample_and_log_prob`` keep that
    value; ``log_prob`` of a stored action recovers it by atanh.

    **At the bounds.** In floating point, tanh reaches 1: an action may lie on its bound, where the exact density is 0
    or infinite. The action is then taken for the nearest value inside, ``t = 1 - eps / 2`` (float32: ``u = 8.66``), so
    its log-probability is finite. ``sample_and_log_prob`` uses the same limit, so that the stored log-probability and
    the one that a loss computes from the stored action agree (a PPO ratio of 1 before the first update). Outside,
    beyond rounding, ``log_prob`` raises; under ``torch.compile``, which cannot branch on data, such actions count as
    the bound.

    ``mode`` and ``deterministic_sample`` are ``T(loc)``, the image of the normal's mode, which is exactly the median.
    The entropy has no closed form: ``has_entropy`` is False. ``kl_divergence`` between two with equal bounds is exact.

    Args:
        loc: ``[*B, A]`` mean before the squash.
        scale: standard deviation before the squash, broadcast with loc.
        upscale: with ``tanh_loc``, the mean is kept within (-upscale, upscale).
        low: lower bound of the action: int, float or tensor that broadcasts to the action.
        high: upper bound, likewise.
        event_dims: number of trailing dims of one action; ``min(1, loc.ndim)`` where None.
        tanh_loc: map the mean by ``upscale * tanh(loc / upscale)``.
        safe_tanh: accepted for compatibility; always safe.
        interval: the prepared bounds instead of low and high (see :meth:`bind`).

    Raises:
        ValueError: if a lower bound is not below its upper bound.

    >>> dist = TanhNormal(torch.zeros(1), torch.ones(1), low=-2, high=2)
    >>> dist.mode, dist.log_prob(torch.zeros(1))
    (tensor([0.]), tensor(-1.6121))
    """

    has_rsample = True
    has_entropy = False

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        upscale: float | Tensor = 5.0,
        low: Bound = -1.0,
        high: Bound = 1.0,
        event_dims: int | None = None,
        tanh_loc: bool = False,
        safe_tanh: bool = True,
        *,
        interval: Interval | None = None,
    ) -> None:
        self.loc, self.scale = same_shape(squash_loc(loc, upscale) if tanh_loc else loc, scale)
        self._interval = interval if interval is not None else Interval.of(low, high)
        self._map = self._interval.like(self.loc)
        self._event_dims = min(1, self.loc.ndim) if event_dims is None else event_dims

    @property
    def _batch_shape(self) -> Size:  # type: ignore[override]
        return split_shape(self.loc.shape, self._event_dims)[0]

    @property
    def _event_shape(self) -> Size:  # type: ignore[override]
        return split_shape(self.loc.shape, self._event_dims)[1]

    @classmethod
    def bind(cls, **distribution_kwargs: Any) -> Callable[..., PolicyDistribution]:
        low, high = distribution_kwargs.pop("low", -1.0), distribution_kwargs.pop("high", 1.0)
        return partial(cls, interval=Interval.of(low, high), **distribution_kwargs)

    @property
    def low(self) -> Tensor:
        """Lower bound, broadcasts to the action."""
        return self._map.low

    @property
    def high(self) -> Tensor:
        """Upper bound, broadcasts to the action."""
        return self._map.high

    @property
    def mode(self) -> Tensor:
        """``T(loc)``, shape ``[*B, A]``."""
        return self._map.from_unit(self.loc.tanh())

    @property
    def median(self) -> Tensor:
        """``T(loc)``, shape ``[*B, A]``."""
        return self.mode

    @property
    def mean(self) -> Tensor:
        """No closed form."""
        raise NotImplementedError("TanhNormal has no analytic mean: average samples, or use deterministic_sample.")

    def entropy(self) -> Tensor:
        """No closed form."""
        raise NotImplementedError("TanhNormal has no analytic entropy: average -log_prob over samples.")

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        return self._map.from_unit(self._draw_unsquashed(sample_shape, generator).tanh())

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """A reparametrised sample ``[*sample_shape, *B, A]``."""
        unsquashed = self.loc + self.scale * standard_noise(self.loc, sample_shape, None)
        return self._map.from_unit(unsquashed.tanh())

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        unsquashed = self._draw_unsquashed(sample_shape, generator)
        return self._map.from_unit(unsquashed.tanh()), self._log_prob_at(unsquashed)

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A reparametrised sample ``[*sample_shape, *B, A]`` and its exact log-probability ``[*sample_shape, *B]``.

        Nothing is clamped here, so that saturated actions keep the gradient of their log-probability.
        """
        noise = standard_noise(self.loc, sample_shape, generator)
        unsquashed = torch.addcmul(self.loc, self.scale, noise)
        return self._map.from_unit(unsquashed.tanh()), self._log_prob_of(noise, unsquashed)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of actions.

        Args:
            value: ``[..., *B, A]`` actions in [low, high].

        Returns:
            ``[..., *B]``, finite also at the bounds.

        Raises:
            ValueError: if an action lies outside its bounds or is NaN, or has another shape.
        """
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        unit = self._map.to_unit(value)
        limit = _LARGEST[unit.dtype]
        if not torch.compiler.is_compiling():
            self._check_inside(value, unit)
        return self._log_prob_at(unit.clamp(-limit, limit).atanh())

    def _draw_unsquashed(self, sample_shape: Sequence[int], generator: Generator | None) -> Tensor:
        loc, scale = self.loc, self.scale
        if loc.requires_grad or scale.requires_grad:
            loc, scale = loc.detach(), scale.detach()
        limit = _LARGEST_ATANH[loc.dtype]
        return torch.addcmul(loc, scale, standard_noise(loc, sample_shape, generator)).clamp_(-limit, limit)

    def _log_prob_at(self, unsquashed: Tensor) -> Tensor:
        return self._log_prob_of((unsquashed - self.loc) / self.scale, unsquashed)

    def _log_prob_of(self, score: Tensor, unsquashed: Tensor) -> Tensor:
        """The log-density by the standard score of the value before the squash: of a fresh sample that is its noise."""
        # softplus(-2 u) = -2 softplus(u, beta=-2); so this is u + softplus(-2 u) = log 2 - log(1 - tanh(u)^2) / 2
        slope = unsquashed.sub(F.softplus(unsquashed, -2.0), alpha=2)
        half = torch.addcmul(slope, score, score, value=-0.25).sub(self.scale.log(), alpha=0.5)
        return self._constant().add(event_sum(half, self._event_dims), alpha=2)

    def _constant(self) -> Tensor:
        """What the log-density holds beside the sum: of the normal, of tanh's slope, and of the bounds."""
        shape = self.loc.shape
        return self._map.constant(shape, self._event_dims, -HALF_LOG_TWO_PI - 2.0 * math.log(2.0))

    def _check_inside(self, value: Tensor, unit: Tensor) -> None:
        inside = unit.abs() <= 1.0 + 16 * torch.finfo(unit.dtype).eps
        if bool(inside.all()):
            return
        first = (~inside).nonzero()[0].tolist() if inside.ndim else []
        raise ValueError(
            f"TanhNormal.log_prob got the action {value[tuple(first)].item()} at index {first} of shape "
            f"{list(value.shape)}, outside its bounds low={self.low.tolist()}, high={self.high.tolist()}. Give the "
            f"bounds of the action spec in distribution_kwargs, or clamp the action before it is scored."
        )

    @property
    def base_dist(self) -> Independent:  # type: ignore[override]
        """The normal before the squash (torch's KL divergence reads it)."""
        return Independent(Normal(self.loc, self.scale, validate_args=False), self._event_dims, validate_args=False)

    @property
    def transforms(self) -> list[Transform]:  # type: ignore[override]
        """tanh, then the affine map (torch's KL divergence compares them)."""
        tanh: list[Transform] = [TanhTransform()]
        if self._map.is_identity:
            return tanh
        return [*tanh, AffineTransform(self._map.center, self._map.half, event_dim=self._event_dims)]

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> TanhNormal:
        shape = (*batch_shape, *self._event_shape)
        return TanhNormal(
            self.loc.expand(shape), self.scale.expand(shape), event_dims=self._event_dims, interval=self._interval
        )
