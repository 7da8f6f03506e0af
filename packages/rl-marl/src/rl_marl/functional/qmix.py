"""QMIX on tensors: the values of taken and of greedy actions, and the monotonic mixture of agents' values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_core.errors import PolicyError, SpecError

__all__ = ["greedy_action", "monotonic_mixture", "taken_value"]


def taken_value(action_value: Tensor, action: Tensor, action_space: str | None = None) -> Tensor:
    """The values of the actions that were taken.

    Args:
        action_value: [*B, n, K].
        action: one-hot [*B, n, K], or the index, [*B, n] or [*B, n, 1].
        action_space: "one_hot" or "categorical"; read from the shape where None.

    Returns:
        [*B, n, 1].

    Raises:
        SpecError: the action has neither shape, or not that of the space.

    >>> value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> taken_value(value, torch.tensor([1, 0])).squeeze(-1), taken_value(value, torch.eye(2)).squeeze(-1)
    (tensor([2., 3.]), tensor([1., 4.]))
    """
    one_hot = action.shape == action_value.shape and action_space != "categorical"
    if one_hot:
        return (action_value * action.to(action_value.dtype)).sum(-1, keepdim=True)
    index = action.unsqueeze(-1) if action.shape == action_value.shape[:-1] else action
    if index.shape != (*action_value.shape[:-1], 1) or action_space == "one_hot":
        raise SpecError(
            f"actions {list(action.shape)} do not fit action values {list(action_value.shape)}"
            f"{f' of the action space {action_space!r}' if action_space else ''}: they are one-hot, of the same shape, "
            "or an index, without the last dimension"
        )
    return action_value.gather(-1, index.to(torch.int64))


def greedy_action(action_value: Tensor, action_mask: Tensor | None = None, needed: Tensor | None = None) -> Tensor:
    """The index of the allowed action of the highest value.

    Args:
        action_value: [*B, n, K].
        action_mask: bool [*B, n, K], True where an action is allowed; None: all are.
        needed: bool [*B, n], True where an action is needed; elsewhere none need be allowed. None: everywhere.

    Returns:
        [*B, n, 1]; 0 where no action is allowed.

    Raises:
        SpecError: the mask is not bool, or not of the values' shape.
        PolicyError: no action is allowed where one is needed.
    """
    if action_mask is None:
        return action_value.argmax(-1, keepdim=True)
    if action_mask.dtype is not torch.bool or action_mask.shape != action_value.shape:
        raise SpecError(
            f"an action mask is bool and has the shape of the action values, {list(action_value.shape)}; "
            f"got {action_mask.dtype} {list(action_mask.shape)}"
        )
    blocked = ~action_mask.any(-1)
    if needed is not None:
        blocked = blocked & needed
    if bool(blocked.any()):
        where = blocked.nonzero()[0].tolist()
        raise PolicyError(
            f"the action mask allows no action at {where} of {list(blocked.shape)} (rows, then agents). Every agent "
            "that acts needs an allowed action; mark agents that do not act in the group's mask."
        )
    return action_value.masked_fill(~action_mask, float("-inf")).argmax(-1, keepdim=True)


def monotonic_mixture(values: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    r"""A team's value that falls in no agent's value.

    .. math:: Q_{tot} = |w_2| \cdot \mathrm{ELU}(|W_1|^T q + b_1) + b_2

    Args:
        values: [*B, n].
        weight: [*B, n, H], of any sign.
        bias: [*B, H].
        out_weight: [*B, H], of any sign.
        out_bias: [*B, 1].

    Returns:
        [*B, 1].

    Rashid et al., 2018, QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning,
    section 4.1 and figure 2, arXiv 1803.11485.
    """
    hidden = F.elu((values.unsqueeze(-2) @ weight.abs()).squeeze(-2) + bias)
    return (hidden * out_weight.abs()).sum(-1, keepdim=True) + out_bias
