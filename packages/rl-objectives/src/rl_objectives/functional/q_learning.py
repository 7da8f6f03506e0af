"""Q-learning on tensors: values of taken and of greedy actions, one-step targets, and the conservative penalty."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_core.errors import LossError, PolicyError

__all__ = [
    "action_index",
    "check_action_mask",
    "conservative_penalty",
    "greedy_value",
    "one_step_target",
    "taken_value",
]


def taken_value(action_value: Tensor, action: Tensor, action_space: str) -> Tensor:
    """The values of the actions that were taken.

    Args:
        action_value: [*B, n].
        action: "one_hot" and "mult_one_hot": [*B, n], zero or one; "categorical": the index, [*B] or [*B, 1].
        action_space: one of these three. The value of a multi-one-hot action is the sum over its groups.

    Returns:
        [*B, 1].

    Raises:
        LossError: the action's shape is not that of its space.

    >>> value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> taken_value(value, torch.tensor([1, 0]), "categorical").squeeze(-1)
    tensor([2., 3.])
    >>> taken_value(value, torch.tensor([[0, 1], [1, 0]]), "one_hot").squeeze(-1)
    tensor([2., 3.])
    """
    if action_space == "categorical":
        return action_value.gather(-1, _index_of_categorical(action_value, action, action_value.shape[:-1]))
    if action.shape != action_value.shape:
        raise _misfit(action_value, action, action_space)
    # Not a product: an action that a network rules out may have the value -inf, and 0 * -inf is not a number.
    return action_value.masked_fill(action == 0, 0).sum(-1, keepdim=True)


def action_index(action_value: Tensor, action: Tensor, action_space: str) -> Tensor:
    """The index of each action, for values that are distributions.

    Args:
        action_value: [*B, K, n]: K atoms or quantiles of the values of n actions.
        action: "one_hot": [*B, n]; "categorical": [*B] or [*B, 1].
        action_space: one of these two.

    Returns:
        [*B, 1], int64.

    Raises:
        LossError: the action's shape is not that of its space.
    """
    rows = action_value.shape[:-2]
    if action_space == "categorical":
        return _index_of_categorical(action_value, action, rows)
    if action.shape != (*rows, action_value.shape[-1]):
        raise _misfit(action_value, action, action_space)
    return action.to(torch.uint8).argmax(-1, keepdim=True) if action.dtype is torch.bool else action.argmax(-1, True)


def greedy_value(
    action_value: Tensor,
    *,
    chosen_by: Tensor | None = None,
    action_mask: Tensor | None = None,
    groups: Sequence[int] | None = None,
) -> Tensor:
    r"""The value of the best allowed action.

    .. math:: Q(s, \arg\max_a Q_c(s, a))

    where ``Q_c`` is ``chosen_by``, or Q itself.

    Args:
        action_value: [*B, n].
        chosen_by: [*B, n]: the values that choose the action (double Q-learning); None: ``action_value``.
        action_mask: bool [*B, n], True where an action is allowed; None: all are. See :func:`check_action_mask`.
        groups: lengths of the one-hot groups of a multi-one-hot action: one action is chosen in each, and their values
            are added up. None: one group.

    Returns:
        [*B, 1]. A row without an allowed action has the value -inf, or with ``chosen_by`` that of some action.

    Van Hasselt et al., 2015, Deep Reinforcement Learning with Double Q-learning, eq. 4, arXiv 1509.06461.

    >>> value, judge = torch.tensor([1.0, 5.0, 3.0]), torch.tensor([0.0, 1.0, 2.0])
    >>> greedy_value(value), greedy_value(value, chosen_by=judge)
    (tensor([5.]), tensor([3.]))
    >>> greedy_value(value, groups=[1, 2])
    tensor([6.])
    """
    if groups is not None:
        judges = [None] * len(groups) if chosen_by is None else chosen_by.split(list(groups), -1)
        masks = [None] * len(groups) if action_mask is None else action_mask.split(list(groups), -1)
        parts = zip(action_value.split(list(groups), -1), judges, masks, strict=True)
        best = [greedy_value(part, chosen_by=judge, action_mask=mask) for part, judge, mask in parts]
        return torch.stack(best).sum(0)
    ranked = action_value if chosen_by is None else chosen_by
    if action_mask is not None:
        ranked = ranked.masked_fill(~action_mask, float("-inf"))
    if chosen_by is None:
        return ranked.amax(-1, keepdim=True)
    return action_value.gather(-1, ranked.argmax(-1, keepdim=True))


def one_step_target(reward: Tensor, next_value: Tensor, terminated: Tensor, discount: float | Tensor) -> Tensor:
    r"""The target of Q-learning.

    .. math:: y = r + \gamma (1 - m) \max_a Q'(s', a)

    Args:
        reward: [*B, 1]; for n-step data the discounted sum of n rewards.
        next_value: [*B, 1]; whatever it is after a termination, NaN included, does not count.
        terminated: bool [*B, 1].
        discount: gamma, or [*B, 1]: gamma to the power of the steps to the next observation.

    Returns:
        [*B, 1].

    Mnih et al., 2013, Playing Atari with Deep Reinforcement Learning, eq. 2 and 3, arXiv 1312.5602.

    >>> one_step_target(torch.ones(2), torch.full((2,), 4.0), torch.tensor([False, True]), 0.5)
    tensor([3., 1.])
    """
    future = next_value.masked_fill(terminated, 0)
    return reward + discount * future if isinstance(discount, Tensor) else torch.add(reward, future, alpha=discount)


def conservative_penalty(
    action_value: Tensor,
    taken: Tensor,
    action_mask: Tensor | None = None,
    groups: Sequence[int] | None = None,
) -> Tensor:
    r"""How far the values of all actions lie above that of the stored one, CQL(H).

    .. math:: \log \sum_a \exp Q(s, a) - Q(s, a_{data})

    Args:
        action_value: [*B, n].
        taken: [*B, 1]: the value of the stored action.
        action_mask: bool [*B, n]: the sum is over allowed actions. None: over all.
        groups: lengths of the one-hot groups of a multi-one-hot action; the sum is then over all combinations.

    Returns:
        [*B, 1], at least 0 where the stored action is allowed; -inf, without gradient, where none is.

    Kumar et al., 2020, Conservative Q-Learning for Offline Reinforcement Learning, eq. 4, arXiv 2006.04779.

    >>> conservative_penalty(torch.zeros(1, 4), torch.zeros(1, 1)).exp()
    tensor([[4.]])
    """
    if action_mask is not None:
        action_value = action_value.masked_fill(~action_mask, float("-inf"))
    parts = [action_value] if groups is None else action_value.split(list(groups), -1)
    total = parts[0].logsumexp(-1, keepdim=True)
    for part in parts[1:]:
        total = total + part.logsumexp(-1, keepdim=True)
    return total - taken


def check_action_mask(
    action_mask: Tensor, action_value: Tensor, needed: Tensor, groups: Sequence[int] | None = None
) -> Tensor:
    """The mask itself, checked.

    Args:
        action_mask: bool [*B, n].
        action_value: [*B, n], or [*B, K, n].
        needed: bool [*B] or [*B, 1], True where an action is needed; elsewhere none need be allowed.
        groups: lengths of the one-hot groups; each needs an allowed action.

    Returns:
        The mask.

    Raises:
        LossError: it is not bool, or its shape is not that of the values.
        PolicyError: no action is allowed in a row that needs one; the row is named.
    """
    if action_mask.dtype is not torch.bool or action_mask.shape[-1:] != action_value.shape[-1:]:
        raise _wrong_mask(action_mask, action_value)
    rows = action_mask.shape[:-1]
    if rows not in (action_value.shape[:-1], action_value.shape[:-2]):
        raise _wrong_mask(action_mask, action_value)
    parts = [action_mask] if groups is None else action_mask.split(list(groups), -1)
    blocked = ~torch.stack([part.any(-1) for part in parts]).all(0) & needed.reshape(needed.shape[: len(rows)])
    if torch.compiler.is_compiling():
        torch._assert_async(~blocked.any(), "an action mask allows no action in a row that needs one")
    elif bool(blocked.any()):
        where = blocked.nonzero()[0].tolist()
        raise PolicyError(
            f"the action mask allows no action in row {where[0] if len(where) == 1 else where} of {list(rows)}. Every "
            "state that is not terminal needs an allowed action."
        )
    return action_mask


def _index_of_categorical(action_value: Tensor, action: Tensor, rows: torch.Size) -> Tensor:
    index = action.unsqueeze(-1) if action.shape == rows else action
    if index.shape != (*rows, 1):
        raise _misfit(action_value, action, "categorical")
    return index if index.dtype is torch.int64 else index.to(torch.int64)


def _misfit(action_value: Tensor, action: Tensor, action_space: str) -> LossError:
    forms = "an index, [*B] or [*B, 1]" if action_space == "categorical" else "zeros and ones, [*B, n]"
    return LossError(
        f"actions {list(action.shape)} do not fit action values {list(action_value.shape)} of the action space "
        f"{action_space!r}: they are {forms}, n being the last dimension of the values. Is the action space right?"
    )


def _wrong_mask(action_mask: Tensor, action_value: Tensor) -> LossError:
    return LossError(
        f"an action mask is bool [*B, n]; got {action_mask.dtype} {list(action_mask.shape)} for action values "
        f"{list(action_value.shape)}"
    )
