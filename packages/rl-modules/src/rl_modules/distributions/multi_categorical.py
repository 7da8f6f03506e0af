"""Several independent choices side by side, as numbers or as one-hot groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Size, Tensor
from torch.distributions.constraints import Constraint

from rl_modules.distributions.base import PolicyDistribution, check_event
from rl_modules.distributions.categorical import Categorical
from rl_modules.distributions.masked import MaskedCategorical

__all__ = ["MultiCategorical", "MultiOneHotCategorical"]


class MultiCategorical(PolicyDistribution):
    """Independent choices of ``nvec[0], nvec[1], ...`` categories; the log-probability is that of all of them.

    Args:
        logits: ``[*B, sum(nvec)]``, the choices' logits one after the other.
        nvec: the numbers of categories.
        mask: bool ``[*B, sum(nvec)]``, True where a category is allowed.
        event_shape: shape of one action; ``(len(nvec),)`` unless given.

    Raises:
        ValueError: if the logits do not fit, or a choice has no allowed category.

    >>> dist = MultiCategorical(torch.tensor([0.0, 2.0, 1.0, 0.0, 0.0]), nvec=[3, 2])
    >>> dist.mode, dist.log_prob(torch.tensor([1, 0])).exp()
    (tensor([1, 0]), tensor(0.3326))
    """

    has_rsample = False
    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(
        self,
        logits: Tensor,
        nvec: Sequence[int],
        mask: Tensor | None = None,
        *,
        event_shape: Sequence[int] | None = None,
    ) -> None:
        self.nvec = [int(n) for n in torch.as_tensor(nvec).flatten()]
        self._choices = _split(type(self).__name__, logits, self.nvec, mask)
        self._logits, self._mask = logits, mask
        self._batch_shape = logits.shape[:-1]
        self._event_shape = self._one_action(event_shape)

    def _one_action(self, event_shape: Sequence[int] | None) -> Size:
        shape = Size((len(self.nvec),) if event_shape is None else event_shape)
        if math.prod(shape) != len(self.nvec):
            raise ValueError(
                f"{type(self).__name__} has {len(self.nvec)} choices; an action of shape {list(shape)} not"
            )
        return shape

    @classmethod
    def bind(cls, **distribution_kwargs: Any) -> Callable[..., PolicyDistribution]:
        nvec = distribution_kwargs.pop("nvec", None)
        if nvec is not None:
            distribution_kwargs["nvec"] = [int(n) for n in torch.as_tensor(nvec).flatten()]
        return partial(cls, **distribution_kwargs)

    # ---------------------------------------------------------------- from choices [*B, K] to actions and back
    def _write(self, choices: Tensor) -> Tensor:
        return choices.reshape(*choices.shape[:-1], *self._event_shape)

    def _read(self, value: Tensor) -> Tensor:
        return value.long().reshape(*value.shape[: value.ndim - len(self._event_shape)], len(self.nvec))

    @property
    def mode(self) -> Tensor:
        """The most probable category of each choice."""
        return self._write(self._choices.mode)

    def draw(self, sample_shape: Sequence[int] = (), generator: Generator | None = None) -> Tensor:
        return self._write(self._choices.draw(sample_shape, generator))

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        choices, log_prob = self._choices.sample_and_log_prob(sample_shape, generator)
        return self._write(choices), log_prob.sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability ``[..., *B]`` of actions ``[..., *B, *event]``."""
        check_event(type(self).__name__, value, self._batch_shape, self._event_shape)
        return self._choices.log_prob(self._read(value)).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy ``[*B]`` in nats, the sum over the choices."""
        return self._choices.entropy().sum(-1)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> MultiCategorical:
        total = self._logits.shape[-1]
        mask = None if self._mask is None else self._mask.expand(*batch_shape, total)
        return type(self)(self._logits.expand(*batch_shape, total), self.nvec, mask, event_shape=self._event_shape)


class MultiOneHotCategorical(MultiCategorical):
    """The same choices, each written as a one-hot group; an action is ``[*B, sum(nvec)]``, int64.

    Arguments of :class:`MultiCategorical`.

    >>> MultiOneHotCategorical(torch.tensor([0.0, 2.0, 1.0, 0.0, 0.0]), nvec=[3, 2]).mode
    tensor([0, 1, 0, 1, 0])
    """

    def _one_action(self, event_shape: Sequence[int] | None) -> Size:
        return Size((sum(self.nvec),))

    def _write(self, choices: Tensor) -> Tensor:
        groups = zip(choices.unbind(-1), self.nvec, strict=True)
        return torch.cat([F.one_hot(choice, count) for choice, count in groups], -1)

    def _read(self, value: Tensor) -> Tensor:
        # argmax has no kernel for bool
        hot = value.to(torch.uint8) if value.dtype == torch.bool else value
        return torch.stack([group.argmax(-1) for group in hot.split(self.nvec, -1)], -1)


def _split(name: str, logits: Tensor, nvec: list[int], mask: Tensor | None) -> Categorical:
    """One categorical ``[*B, K]`` of as many categories as the largest choice has."""
    if not logits.ndim or logits.shape[-1] != sum(nvec):
        raise ValueError(f"{name} needs {sum(nvec)} logits for choices of {nvec}; got shape {list(logits.shape)}")
    if mask is not None and mask.shape[-1] != sum(nvec):
        raise ValueError(f"{name} needs a mask with {sum(nvec)} entries in the last dim; got shape {list(mask.shape)}")
    longest = max(nvec)
    if mask is None:
        if all(count == longest for count in nvec):
            return Categorical(logits=logits.unflatten(-1, (len(nvec), longest)))
        parts = [F.pad(part, (0, longest - part.shape[-1]), value=-math.inf) for part in logits.split(nvec, -1)]
        return Categorical(logits=torch.stack(parts, -2))
    padded = [F.pad(part, (0, longest - part.shape[-1])) for part in logits.split(nvec, -1)]
    allowed = [F.pad(part, (0, longest - part.shape[-1])) for part in mask.bool().split(nvec, -1)]
    return MaskedCategorical(torch.stack(padded, -2), mask=torch.stack(allowed, -2))
