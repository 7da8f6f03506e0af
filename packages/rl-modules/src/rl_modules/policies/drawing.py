"""Takes a value from a distribution by the exploration type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import InteractionType as ExplorationType
from torch import Generator, Tensor
from torch.distributions import Distribution, constraints

from rl_core.errors import PolicyError
from rl_modules.distributions.base import PolicyDistribution

__all__ = ["draw", "pick"]


def draw(
    dist: Distribution, with_log_prob: bool, sample_shape: Sequence[int], generator: Generator | None
) -> tuple[Any, Tensor | None]:
    """A random value, reparametrised where the distribution can and gradients are recorded.

    Args:
        dist: the distribution.
        with_log_prob: whether to score the value.
        sample_shape: leading dims of the draw.
        generator: random state; only our own distributions take one.

    Returns:
        The value, and its log-probability or None.
    """
    through = torch.is_grad_enabled() and dist.has_rsample
    if isinstance(dist, PolicyDistribution):
        if with_log_prob:
            joint = dist.rsample_and_log_prob if through else dist.sample_and_log_prob  # type: ignore[attr-defined]
            return joint(sample_shape, generator)
        if through and generator is None:
            return dist.rsample(torch.Size(sample_shape)), None
        if through:
            return dist.rsample_and_log_prob(sample_shape, generator)[0], None  # type: ignore[attr-defined]
        return dist.draw(sample_shape, generator), None
    shape = torch.Size(sample_shape)
    value = dist.rsample(shape) if through else dist.sample(shape)
    return value, dist.log_prob(value) if with_log_prob else None


def pick(dist: Distribution, how: ExplorationType, n_empirical_estimate: int) -> Any:
    """A value without chance (but for the mean of a distribution that has none, which averages samples).

    Args:
        dist: the distribution.
        how: MODE, MEAN, MEDIAN or DETERMINISTIC.
        n_empirical_estimate: number of samples to average.

    Raises:
        PolicyError: if the distribution does not have such a value.
    """
    try:
        if how is ExplorationType.MEAN:
            return _mean(dist, n_empirical_estimate)
        if how is ExplorationType.MODE:
            return dist.mode
        if how is ExplorationType.MEDIAN:
            return dist.median  # type: ignore[attr-defined]
        return _deterministic(dist)
    except (AttributeError, NotImplementedError) as error:
        raise PolicyError(
            f"{type(dist).__name__} has no {how.value} value. Choose another exploration type with "
            f"set_exploration_type, or default_interaction_type=."
        ) from error


def _mean(dist: Distribution, count: int) -> Tensor:
    try:
        return dist.mean
    except (AttributeError, NotImplementedError):
        shape = torch.Size((count,))
        return (dist.rsample(shape) if dist.has_rsample else dist.sample(shape)).mean(0)


def _deterministic(dist: Distribution) -> Any:
    if isinstance(dist, PolicyDistribution):
        return dist.deterministic_sample
    value = getattr(dist, "deterministic_sample", None)
    if value is not None:
        return value
    try:
        is_real = constraints.independent(dist.support, 0).base_constraint is constraints.real
        is_real = is_real or getattr(dist.support, "base_constraint", None) is constraints.real
    except NotImplementedError:
        is_real = True
    return dist.mean if is_real else dist.mode
