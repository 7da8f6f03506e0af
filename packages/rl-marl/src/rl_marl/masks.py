"""Which rows of which agents count: the collector's mask of rows and a group's mask of acting agents, as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.keys import Key, as_path
from rl_core.losses.keys import quoted

__all__ = ["agents_mask", "bootstrap_mask", "group_mask", "rows_mask"]


def group_mask(batch: TensorDictBase, rows_key: Key, agents_key: Key, n_agents: int) -> Tensor | None:
    """The rows that count, for each agent of a group: valid for the collector, and the agent acts in them.

    Args:
        batch: [*B].
        rows_key: bool [*B], True in rows that count; read if present. Usually ``("collector", "mask")``.
        agents_key: bool [*B, n], True where the agent acts in the row; read if present. Usually ``(group, "mask")``.
        n_agents: agents of the group.

    Returns:
        bool [*B, n], both masks at once; None where the batch has neither.

    Raises:
        SpecError: a mask is not bool, or has another shape; the key and the group are named.

    >>> from tensordict import TensorDict
    >>> acting = torch.tensor([[True, True], [True, False]])
    >>> batch = TensorDict({"collector": {"mask": torch.tensor([False, True])}, "agents": {"mask": acting}}, [2])
    >>> group_mask(batch, ("collector", "mask"), ("agents", "mask"), 2)
    tensor([[False, False],
            [ True, False]])
    """
    rows, agents = rows_mask(batch, rows_key), agents_mask(batch, agents_key, n_agents)
    if rows is None:
        return agents
    if agents is None:
        return rows.unsqueeze(-1).expand(*rows.shape, n_agents)
    return rows.unsqueeze(-1) & agents


def rows_mask(batch: TensorDictBase, key: Key) -> Tensor | None:
    """The mask of rows, bool [*B], or None where the batch has none.

    Raises:
        SpecError: it is not bool, or not of the batch's shape.
    """
    mask = batch.get(key, None)
    return None if mask is None else _checked(mask, key, list(batch.batch_size), "rows that count", "[*B]")


def agents_mask(batch: TensorDictBase, key: Key, n_agents: int) -> Tensor | None:
    """The mask of a group's acting agents, bool [*B, n], or None where the batch has none.

    Raises:
        SpecError: it is not bool, or not of the batch's shape with the agents last.
    """
    mask = batch.get(key, None)
    if mask is None:
        return None
    group = as_path(key)[-2] if len(as_path(key)) > 1 else "the root"
    what = f"agents of group {group!r} that act"
    return _checked(mask, key, [*batch.batch_size, n_agents], what, f"[*B, n] with n = {n_agents} agents")


def bootstrap_mask(acting: Tensor | None, next_acting: Tensor, done: Tensor, terminated: Tensor | None) -> Tensor:
    """The agents whose values make up the value of what follows a step.

    These are the agents that act next. Where the episode was cut, nobody acts next: there it is the agents that would
    have gone on, those that acted and did not terminate.

    Args:
        acting: bool [*B, n], who acted in the step; None: everybody.
        next_acting: bool [*B, n], who acts after it.
        done: bool [*B, 1], the episode ended with the step.
        terminated: bool [*B, n], which agents terminated with the step, or before; None: not known.

    Returns:
        bool [*B, n].

    >>> acted, ended = torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]])
    >>> bootstrap_mask(acted, torch.zeros_like(acted), torch.tensor([[True]]), ended)
    tensor([[ True, False, False]])
    """
    cut = done if acting is None else done & acting
    if terminated is not None:
        cut = cut & ~terminated
    return next_acting | cut


def _checked(mask: Tensor, key: Key, expected: Sequence[int], what: str, layout: str) -> Tensor:
    if mask.dtype is not torch.bool:
        raise SpecError(f"the mask {quoted(key)} of {what} must be bool; got {mask.dtype}. Convert it: mask.bool().")
    if list(mask.shape) == list(expected):
        return mask
    cure = " Drop its last dimension: mask.squeeze(-1)." if list(mask.shape) == [*expected, 1] else ""
    raise SpecError(
        f"the mask {quoted(key)} of {what} must have shape {list(expected)}, {layout}; got {list(mask.shape)}.{cure}"
    )
