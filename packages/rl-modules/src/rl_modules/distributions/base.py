"""What a policy asks of its action distribution, beyond torch's own interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Generator, Size, Tensor
from torch.distributions import Distribution

__all__ = ["PolicyDistribution", "check_event", "upcast_half"]

_HALF = (torch.float16, torch.bfloat16)


class PolicyDistribution(Distribution):
    """A torch distribution that a policy can build and draw from at the price of its tensor operations.

    Instances are built at every policy call, so nothing is validated: parameters that are NaN give samples without
    meaning, as they would in a hand-written loop.

    Attributes:
        has_entropy: whether :meth:`entropy` is analytic. Where it is False, ``entropy()`` raises NotImplementedError
            and a loss estimates it from log-probabilities.
    """

    has_entropy: ClassVar[bool] = True
    _validate_args = False

    @classmethod
    def bind(cls, **distribution_kwargs: Any) -> Callable[..., PolicyDistribution]:
        """A factory with fixed arguments, which are checked and prepared once instead of at every call.

        Args:
            **distribution_kwargs: arguments of the class other than the parameters that a network gives.

        Returns:
            A picklable callable that takes the remaining arguments by keyword.
        """
        return partial(cls, **distribution_kwargs)

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """A sample without gradient, and its log-probability.

        Args:
            sample_shape: leading dims of the draw.
            generator: random state; torch's global one where None.

        Returns:
            sample ``[*sample_shape, *B, *event]`` and log-probability ``[*sample_shape, *B]``.
        """
        value = self.draw(sample_shape, generator)
        return value, self.log_prob(value)

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        """A sample without gradient, from the given random state.

        Args:
            sample_shape: leading dims of the draw.
            generator: random state; torch's global one where None.

        Returns:
            sample ``[*sample_shape, *B, *event]``.
        """
        raise NotImplementedError

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        return self.draw(sample_shape)

    @property
    def deterministic_sample(self) -> Tensor:
        """The value taken under ``ExplorationType.DETERMINISTIC``."""
        return self.mode


def check_event(name: str, value: Tensor, batch_shape: Size, event_shape: Size) -> None:
    """Refuse a value whose shape would be broadcast in silence against the distribution's.

    Args:
        name: the distribution's class name, for the message.
        value: the value to score; it must end with ``[*B, *event]``.
        batch_shape: the distribution's batch shape.
        event_shape: the distribution's event shape.

    Raises:
        ValueError: if the shape does not end with ``[*B, *event]``.
    """
    expected = (*batch_shape, *event_shape)
    count = len(expected)
    shape = value.shape
    if count and (len(shape) < count or shape[-count:] != expected):
        raise ValueError(
            f"{name}.log_prob got a value of shape {list(shape)}; it must end with batch shape {list(batch_shape)} + "
            f"event shape {list(event_shape)}. Squeeze or reshape the value: it is never broadcast."
        )


def upcast_half(values: Tensor) -> Tensor:
    """The values in float32 if their type has too few digits for a random race (float16, bfloat16)."""
    return values.float() if values.dtype in _HALF else values
