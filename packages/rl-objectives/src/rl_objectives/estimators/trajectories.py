"""What an estimator reads of a batch: the time dimension, rewards, end flags and the discount per step."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import SpecError
from rl_objectives.functional.time_series import Discount

__all__ = ["ends_within_mask", "raised_discount", "time_axis"]


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
        SpecError: the count has another shape than the reward.
    """
    if steps is None:
        return gamma
    if steps.shape != reward.shape:
        raise SpecError(f"steps_to_next_obs {list(steps.shape)} and reward {list(reward.shape)} must have one shape")
    return torch.as_tensor(gamma, dtype=reward.dtype, device=reward.device) ** steps
