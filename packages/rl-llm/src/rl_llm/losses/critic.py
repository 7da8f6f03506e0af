"""A critic beside GRPO: returns of dialog turns, advantages over its values, and its own loss."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_llm.functional.returns import discounted_returns

__all__ = ["turn_returns", "value_distance"]


def turn_returns(reward: Tensor, done: Tensor, rows: torch.Size, gamma: float, owner: str) -> Tensor:
    """The discounted return of every turn, [*B, 1].

    Args:
        reward: [*B, ...]; what lies beyond the rows (per-token rewards) is added up.
        done: bool [*B, ...], True where a dialog ended.
        rows: *B. The last dimension is time: whole dialogs, one after another.
        gamma: discount per turn.
        owner: who asks, for the error.

    Raises:
        SpecError: a row of turns does not end with the end of a dialog.
    """
    reward = reward.reshape(*rows, -1).sum(-1)
    ended = done.reshape(*rows, -1).any(-1)
    if not bool(ended[..., -1].all()):
        raise SpecError(
            f"{owner} computes returns from rewards only for whole dialogs in the order of their turns, and the last "
            "turn of this batch is not done. Write value_target (or advantage) before the rows are shuffled or cut."
        )
    return discounted_returns(reward, ended, gamma).unsqueeze(-1)


def value_distance(value: Tensor, target: Tensor, old_value: Tensor | None, limit: Tensor | None) -> Tensor:
    """The squared distance to the target, and with a limit the larger one of the value and of the limited value.

    Engstrom et al., 2020, Implementation Matters in Deep Policy Gradients, section 2, arXiv 2005.12729.
    """
    distance = (value - target).square()
    if old_value is None or limit is None:
        return distance
    kept = old_value + (value - old_value).clamp(-limit, limit)
    return distance.maximum((kept - target).square())
