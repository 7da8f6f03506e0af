"""Discounted sums of the rewards to come within a trajectory."""

from __future__ import annotations

from torch import Tensor

from rl_objectives.functional.scan import reverse_scan
from rl_objectives.functional.time_series import Discount, check_series, per_step

__all__ = ["reward2go"]


def reward2go(reward: Tensor, done: Tensor, gamma: Discount, *, time_dim: int = -2) -> Tensor:
    r"""The discounted sum of rewards from each step to the end of its trajectory or of the batch.

    .. math:: G_t = r_t + \gamma (1 - d_t) G_{t+1}

    Args:
        reward: [*B, T, F].
        done: bool [*B, T, F].
        gamma: discount per step, a number or a tensor that broadcasts to the reward.
        time_dim: index of T.

    Returns:
        [*B, T, F]. No value is bootstrapped at the batch's last step.

    Raises:
        SpecError: the shapes differ, or ``done`` is not bool.

    >>> import torch
    >>> done = torch.tensor([[False], [True], [False]])
    >>> reward2go(torch.ones(3, 1), done, 0.5).squeeze(-1)
    tensor([1.5000, 1.0000, 1.0000])
    """
    time_dim = check_series(time_dim, {"done": done}, {"reward": reward})
    return reverse_scan(reward, per_step("gamma", gamma, reward).masked_fill(done, 0), time_dim)
