"""Advantages of answers within the group of answers to one prompt."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["BASELINES", "GroupAdvantage", "group_advantage"]

BASELINES = ("std", "mean", "leave_one_out")


class GroupAdvantage(NamedTuple):
    """Advantages, and what is known about the groups.

    Attributes:
        advantage: [N], of the returns' dtype.
        groups: how many groups there are.
        singles: how many of them have one member.
        dead: how many of them have no spread: all members alike, single ones included; no gradient comes from them.
    """

    advantage: Tensor
    groups: int
    singles: int
    dead: int

    @property
    def dead_share(self) -> float:
        """The share of groups without spread; 0 where there are no groups."""
        return self.dead / self.groups if self.groups else 0.0


def group_advantage(returns: Tensor, group: Tensor, *, baseline: str = "std", epsilon: float = 1e-4) -> GroupAdvantage:
    r"""How much better each answer did than its group.

    ::

        std             (G - mean) / (std + epsilon), the std unbiased   GRPO, arXiv 2402.03300, section 4.1.2
        mean            G - mean                                         Dr. GRPO, arXiv 2503.20783
        leave_one_out   G - mean of the others                           RLOO, arXiv 2402.14740

    A group of one and a group of equal returns have advantages of exactly 0.

    Args:
        returns: [N], finite.
        group: int64 [N], equal for answers to one prompt; any numbers.
        baseline: one of the above.
        epsilon: keeps a small spread from being blown up. It is added, as TRL does (1e-4); TorchRL instead bounds the
            std from below by 1e-6.

    Returns:
        The advantages and counts of groups.

    Raises:
        SpecError: there is no such baseline, or the shapes differ.

    >>> group_advantage(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([7, 7, 8]), baseline="mean").advantage
    tensor([ 0.5000, -0.5000,  0.0000])
    """
    if baseline not in BASELINES:
        raise SpecError(f"baseline is one of {', '.join(map(repr, BASELINES))}; got {baseline!r}")
    if returns.ndim != 1 or group.shape != returns.shape:
        raise SpecError(
            f"returns and group are [N] both; got returns {list(returns.shape)} and group {list(group.shape)}"
        )
    if returns.numel() == 0:
        return GroupAdvantage(returns, 0, 0, 0)
    _, index = group.unique(return_inverse=True)
    count = torch.bincount(index)
    exact = returns.double()
    total = torch.zeros_like(count, dtype=torch.float64).index_add(0, index, exact)
    mean = total / count
    centred = exact - mean[index]
    if baseline == "leave_one_out":
        others = (count - 1).clamp_min(1)
        advantage = exact - ((total[index] - exact) / others[index])
    elif baseline == "std":
        squares = torch.zeros_like(total).index_add(0, index, centred.square())
        deviation = (squares / (count - 1).clamp_min(1)).sqrt()
        advantage = centred / (deviation + epsilon)[index]
    else:
        advantage = centred
    lowest = torch.zeros_like(total).scatter_reduce(0, index, exact, "amin", include_self=False)
    highest = torch.zeros_like(total).scatter_reduce(0, index, exact, "amax", include_self=False)
    # Not left to rounding: the mean of equal numbers may differ from them in the last digit.
    dead = lowest == highest
    advantage = advantage.masked_fill(dead[index], 0.0).to(returns.dtype)
    return GroupAdvantage(advantage, count.numel(), int((count == 1).sum()), int(dead.sum()))
