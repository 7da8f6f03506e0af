"""Normal distribution cut off at the bounds of an action."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Generator, Size, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from rl_modules.distributions.base import PolicyDistribution, check_event
from rl_modules.distributions.gaussian import HALF_LOG_TWO_PI, event_sum, same_shape, split_shape, squash_loc
from rl_modules.distributions.interval import Bound, Interval

__all__ = ["TruncatedNormal"]


class TruncatedNormal(PolicyDistribution):
    r"""The normal distribution conditioned on ``low <= x <= high``, element by element.

    .. math:: \log p(x) = \sum_i \log N(x_i; loc_i, scale_i) - \log (\Phi(\beta_i) - \Phi(\alpha_i))

    with ``alpha = (low - loc) / scale`` and ``beta = (high - loc) / scale``. Computed in float64 from logarithms of the
    tail on the side of the interval, so that a mean far outside keeps its gradient. Samples invert the distribution
    function; their gradients are the implicit ones (Figurnov, Mohamed, Mnih 2018, arXiv 1805.08498, equation 5).

    Args:
        loc: ``[*B, A]`` mean before the cut.
        scale: standard deviation before the cut, broadcast with loc.
        upscale: with ``tanh_loc``, the mean is kept within (-upscale, upscale).
        low: lower bound of the action: int, float or tensor that broadcasts to the action.
        high: upper bound, likewise.
        tanh_loc: map the mean by ``upscale * tanh(loc / upscale)``.
        event_dims: number of trailing dims of one action; ``min(1, loc.ndim)`` where None.
        interval: the prepared bounds instead of low and high (see :meth:`bind`).

    Raises:
        ValueError: if a lower bound is not below its upper bound.

    >>> dist = TruncatedNormal(torch.zeros(1), torch.ones(1), low=-1, high=1)
    >>> dist.mode, dist.log_prob(torch.zeros(1))
    (tensor([0.]), tensor(-0.5372))
    """

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Constraint]] = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        upscale: float | Tensor = 5.0,
        low: Bound = -1.0,
        high: Bound = 1.0,
        tanh_loc: bool = False,
        *,
        event_dims: int | None = None,
        interval: Interval | None = None,
    ) -> None:
        self.loc, self.scale = same_shape(squash_loc(loc, upscale) if tanh_loc else loc, scale)
        self._interval = interval if interval is not None else Interval.of(low, high)
        bounds = self._interval.like(self.loc)
        self.low, self.high = bounds.low, bounds.high
        self._event_dims = min(1, self.loc.ndim) if event_dims is None else event_dims
        self._batch_shape, self._event_shape = split_shape(self.loc.shape, self._event_dims)

    @classmethod
    def bind(cls, **distribution_kwargs: Any) -> Callable[..., PolicyDistribution]:
        low, high = distribution_kwargs.pop("low", -1.0), distribution_kwargs.pop("high", 1.0)
        return partial(cls, interval=Interval.of(low, high), **distribution_kwargs)

    def _limits(self) -> tuple[Tensor, Tensor]:
        """The scores of both bounds, in float64."""
        loc, scale = self.loc.double(), self.scale.double()
        return (self.low.double() - loc) / scale, (self.high.double() - loc) / scale

    @property
    def mode(self) -> Tensor:
        """The mean before the cut, moved to the nearest bound if it lies outside; ``[*B, A]``."""
        return torch.minimum(torch.maximum(self.loc, self.low), self.high)

    @property
    def mean(self) -> Tensor:
        """``loc + scale (phi(alpha) - phi(beta)) / Z``, shape ``[*B, A]``."""
        alpha, beta = self._limits()
        log_mass = _log_mass(alpha, beta)
        shift = (_log_density(alpha) - log_mass).exp() - (_log_density(beta) - log_mass).exp()
        return self._inside(self.loc.double() + self.scale.double() * shift)

    @property
    def median(self) -> Tensor:
        """Half of the mass lies on either side; ``[*B, A]``."""
        alpha, beta = self._limits()
        return self._inside(self.loc + self.scale * _quantile(torch.full_like(alpha, 0.5), alpha, beta))

    def _inside(self, value: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(value.to(self.loc.dtype), self.low), self.high)

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        with torch.no_grad():
            return self._reparametrised(sample_shape, generator)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """A reparametrised sample ``[*sample_shape, *B, A]``."""
        return self._reparametrised(sample_shape, None)

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A reparametrised sample ``[*sample_shape, *B, A]`` and its log-probability ``[*sample_shape, *B]``."""
        value = self._reparametrised(sample_shape, generator)
        return value, self._log_prob_at(value)

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        value = self.draw(sample_shape, generator)
        return value, self._log_prob_at(value)

    def _reparametrised(self, sample_shape: Sequence[int], generator: Generator | None) -> Tensor:
        alpha, beta = self._limits()
        shape = (*sample_shape, *alpha.shape)
        share = torch.rand(shape, dtype=torch.float64, device=alpha.device, generator=generator)
        with torch.no_grad():
            score = _quantile(share, alpha, beta)
        if alpha.requires_grad:
            score = score + _implicit_gradient(score, share, alpha, beta)
        value = self.loc + self.scale * score
        with torch.no_grad():  # rounding may carry a value outside; its gradient stays
            excess = self._inside(value) - value
        return (value + excess).to(self.loc.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of actions.

        Args:
            value: ``[..., *B, A]`` actions in [low, high].

        Returns:
            ``[..., *B]``.

        Raises:
            ValueError: if an action lies outside its bounds or is NaN, or has another shape.
        """
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        if not torch.compiler.is_compiling():
            slack = 16 * torch.finfo(self.loc.dtype).eps * (self.high - self.low)
            inside = (value >= self.low - slack) & (value <= self.high + slack)
            if not bool(inside.all()):
                first = (~inside).nonzero()[0].tolist() if inside.ndim else []
                raise ValueError(
                    f"TruncatedNormal.log_prob got the action {value[tuple(first)].item()} at index {first}, outside "
                    f"its bounds low={self.low.tolist()}, high={self.high.tolist()}. Give the bounds of the action "
                    f"spec in distribution_kwargs, or clamp the action before it is scored."
                )
        return self._log_prob_at(value)

    def _log_prob_at(self, value: Tensor) -> Tensor:
        score = (value - self.loc) / self.scale
        mass = _log_mass(*self._limits()).to(score.dtype)
        per_element = score * score * -0.5 - self.scale.log() - HALF_LOG_TWO_PI - mass
        return event_sum(per_element, self._event_dims)

    def entropy(self) -> Tensor:
        """Entropy ``[*B]`` in nats."""
        alpha, beta = self._limits()
        log_mass = _log_mass(alpha, beta)
        edges = alpha * (_log_density(alpha) - log_mass).exp() - beta * (_log_density(beta) - log_mass).exp()
        per_element = log_mass + self.scale.double().log() + 0.5 + HALF_LOG_TWO_PI + 0.5 * edges
        return event_sum(per_element, self._event_dims).to(self.loc.dtype)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> TruncatedNormal:
        shape = (*batch_shape, *self._event_shape)
        return TruncatedNormal(
            self.loc.expand(shape), self.scale.expand(shape), event_dims=self._event_dims, interval=self._interval
        )


def _log_density(score: Tensor) -> Tensor:
    return score * score * -0.5 - 0.5 * math.log(2.0 * math.pi)


def _mirrored(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The interval, mirrored where it lies to the right of the mean, since the left tail keeps its digits."""
    right = alpha + beta > 0
    return torch.where(right, -beta, alpha), torch.where(right, -alpha, beta), right


def _log_mass(alpha: Tensor, beta: Tensor) -> Tensor:
    """``log(Phi(beta) - Phi(alpha))``."""
    left, end, _ = _mirrored(alpha, beta)
    log_left, log_end = torch.special.log_ndtr(left), torch.special.log_ndtr(end)
    return log_end + (-torch.expm1(log_left - log_end)).log()


def _quantile(share: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """The score below which a share of the mass between alpha and beta lies."""
    left, end, right = _mirrored(alpha, beta)
    part = torch.where(right, 1.0 - share, share)
    low, high = torch.special.ndtr(left), torch.special.ndtr(end)
    score = torch.special.ndtri(low + part * (high - low))
    # beyond 37 deviations the mass is no number any more: it falls off like exp(-|end| * distance) there
    far = end + torch.log(part.clamp_min(torch.finfo(part.dtype).tiny)) / end.abs().clamp_min(1.0)
    score = torch.where(high < 1e-300, far, score)
    score = torch.minimum(torch.maximum(score, left), end)
    return torch.where(right, -score, score)


def _implicit_gradient(score: Tensor, share: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Zero, with the gradient of the score by alpha and beta at a fixed share of the mass."""
    by_alpha = (1.0 - share) * ((score * score - alpha * alpha) / 2).exp()
    by_beta = share * ((score * score - beta * beta) / 2).exp()
    return by_alpha.detach() * (alpha - alpha.detach()) + by_beta.detach() * (beta - beta.detach())
