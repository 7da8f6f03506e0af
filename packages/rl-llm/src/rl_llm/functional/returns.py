"""What a dialog earned: rewards of its turns added up over the trajectory that they belong to."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["TRAJECTORY_RETURNS", "discounted_returns", "trajectory_index", "trajectory_return"]

TRAJECTORY_RETURNS = ("sum", "mean", "max")


def trajectory_index(done: Tensor) -> Tensor:
    """Which trajectory each turn belongs to, counted from 0; a trajectory ends with its done.

    Args:
        done: bool [T], turns in order, trajectories one after another.

    Returns:
        int64 [T].

    >>> trajectory_index(torch.tensor([False, True, True, False]))
    tensor([0, 0, 1, 2])
    """
    ended = done.long()
    return ended.cumsum(0) - ended


def trajectory_return(reward: Tensor, index: Tensor, mode: str = "sum") -> Tensor:
    r"""One number per trajectory, the same at each of its turns.

    .. math:: G = \sum_k r_k

    Args:
        reward: [T].
        index: int64 [T], the trajectory of each turn, counted from 0 without gaps.
        mode: "sum", "mean" or "max".

    Returns:
        [T].

    Raises:
        SpecError: there is no such mode.

    >>> trajectory_return(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0, 0, 1]))
    tensor([1., 1., 5.])
    """
    if mode not in TRAJECTORY_RETURNS:
        raise SpecError(f"a trajectory return is one of {', '.join(map(repr, TRAJECTORY_RETURNS))}; got {mode!r}")
    count = int(index.max()) + 1 if index.numel() else 0
    reduce = {"sum": "sum", "mean": "mean", "max": "amax"}[mode]
    return reward.new_zeros(count).scatter_reduce(0, index, reward, reduce, include_self=False)[index]


def discounted_returns(reward: Tensor, done: Tensor, gamma: float) -> Tensor:
    r"""The return of each turn: its reward and the discounted rewards of the turns after it.

    .. math:: G_k = r_k + \gamma (1 - d_k) G_{k+1}

    Args:
        reward: [*B, T].
        done: bool [*B, T].
        gamma: in [0, 1].

    Returns:
        [*B, T].

    Sutton and Barto, 2018, Reinforcement Learning, eq. 3.9.

    >>> discounted_returns(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([False, False, True]), 0.5)
    tensor([0.2500, 0.5000, 1.0000])
    """
    turns = []
    following = torch.zeros_like(reward[..., 0])
    for k in reversed(range(reward.shape[-1])):
        following = reward[..., k] + gamma * torch.where(done[..., k], 0.0, following)
        turns.append(following)
    return torch.stack(turns[::-1], -1) if turns else reward
