"""What an estimator reads of a batch: the time dimension, rewards, end flags, masks and the discount per step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import LossError, SpecError
from rl_core.estimators import EstimatorKeys
from rl_core.keys import Key
from rl_objectives.functional.standardize import standardize, standardize_groups
from rl_objectives.functional.time_series import Discount

__all__ = ["Steps", "TrajectoryKeys", "ends_within_mask", "raised_discount", "time_axis", "trailing"]


@dataclass(frozen=True)
class TrajectoryKeys(EstimatorKeys):
    """The entries of the estimators of this package."""

    agent_mask: Key = ("agents", "mask")
    """Read if present where values are per agent, [*B, T, n, 1]: bool [*B, T, n], True where the agent acts."""


@dataclass(frozen=True)
class Steps:
    """A batch's tensors, each [*B, T, F]."""

    gamma: Discount
    reward: Tensor
    done: Tensor
    terminated: Tensor
    time: int
    mask: Tensor | None
    """bool [*B, T], True in rows that count."""
    agent_mask: Tensor | None = field(default=None, kw_only=True)
    """bool [*B, T, n], True where the agent acts."""
    groups: Tensor | None = field(default=None, kw_only=True)
    """Integers [*B, T] or [*B, T, F]: rows with one number are standardised together."""

    def valid(self, ndim: int) -> Tensor | None:
        """Where a value of so many dimensions counts, bool, broadcastable to it; None: everywhere."""
        rows, agents = trailing(self.mask, ndim), trailing(self.agent_mask, ndim)
        if rows is None or agents is None:
            return agents if rows is None else rows
        return rows & agents

    def standardized(self, values: Tensor) -> Tensor:
        """Values with mean 0 and standard deviation 1 over the rows that count, or over those of each group."""
        counted = self.valid(values.ndim)
        if self.groups is None:
            return standardize(values, counted, floor=1e-4)
        groups = self.groups.reshape(self.groups.shape + (1,) * (values.ndim - self.groups.ndim))
        return standardize_groups(values, groups, counted, floor=1e-4)

    def neutral(self, advantage: Tensor, target: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Advantage and target, 0 and the value itself in rows that do not count."""
        counted = self.valid(advantage.ndim)
        if counted is None:
            return advantage, target
        return advantage.masked_fill(~counted, 0), torch.where(counted, target, value)


def trailing(mask: Tensor | None, ndim: int) -> Tensor | None:
    """A mask with trailing dimensions of size one, so that it broadcasts to values."""
    return None if mask is None else mask.reshape(mask.shape + (1,) * (ndim - mask.ndim))


def time_axis(batch: TensorDictBase, time_dim: int | None, owner: str) -> int:
    """Index of the time dimension: the one named "time", else ``time_dim``, else the last batch dimension.

    Raises:
        SpecError: the batch has no batch dimension, or ``time_dim`` is not one of them.
    """
    count = len(batch.batch_size)
    if count == 0:
        raise SpecError(f"{owner} needs a batch of steps with a time dimension, [*B, T]; the batch size is []")
    if "time" in batch.names:
        return batch.names.index("time")
    if time_dim is None:
        return count - 1
    if not -count <= time_dim < count:
        raise SpecError(f"{owner}: time_dim={time_dim} is no dimension of a batch of size {list(batch.batch_size)}")
    return time_dim % count


def ends_within_mask(done: Tensor, mask: Tensor | None, time: int) -> Tensor:
    """The end flags, true as well at the last valid step before padding.

    A trajectory that was cut, not ended, has no done flag: without this its trace would run into the padding.

    Args:
        done: bool [*B, T, F].
        mask: bool [*B, T], True in valid steps, or None.
        time: index of T.

    Returns:
        bool [*B, T, F].
    """
    if mask is None:
        return done
    ahead = torch.ones_like(mask)
    steps = mask.shape[time]
    ahead.narrow(time, 0, steps - 1).copy_(mask.narrow(time, 1, steps - 1))
    cut = ~(mask & ahead)
    return done | cut.reshape(cut.shape + (1,) * (done.ndim - cut.ndim))


def raised_discount(gamma: Discount, steps: Tensor | None, reward: Tensor) -> Discount:
    """Gamma to the power of the steps from an observation to its successor (n-step data), if the batch counts them.

    Raises:
        LossError: the count has another shape than the reward.
    """
    if steps is None:
        return gamma
    if steps.shape != reward.shape:
        raise LossError(f"steps_to_next_obs {list(steps.shape)} and reward {list(reward.shape)} must have one shape")
    return torch.as_tensor(gamma, dtype=reward.dtype, device=reward.device) ** steps
