"""Entries of a group in one layout, [*B, n, 1]: each agent's own, or the team's spread over its agents."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rl_core.errors import SpecError
from rl_core.keys import Key, as_path
from rl_core.losses.keys import quoted

__all__ = ["group_name", "over_agents"]


def group_name(key: Key) -> str:
    """The group to which an entry belongs, as a message names it.

    >>> group_name(("agents", "reward")), group_name("reward")
    ("group 'agents'", 'the root')
    """
    path = as_path(key)
    return f"group {path[-2]!r}" if len(path) > 1 else "the root"


def over_agents(
    owner: str, entry: tuple[Key, Tensor], batch_size: Sequence[int], n_agents: int, known_by: tuple[Key, Sequence[int]]
) -> Tensor:
    """An entry per agent: a team's value is every agent's value.

    Args:
        owner: who asks, for the error.
        entry: the key and the tensor, per agent [*B, n, 1] or of the team [*B, 1].
        batch_size: [*B].
        n_agents: n.
        known_by: the key and the shape that told n, for the error.

    Returns:
        [*B, n, 1]; a view where the team's value was spread.

    Raises:
        SpecError: the entry has another shape; both keys, both shapes, the group and n are named.

    >>> import torch
    >>> over_agents("Loss", ("reward", torch.ones(4, 1)), [4], 3, known_by=(("agents", "action"), [4, 3])).shape
    torch.Size([4, 3, 1])
    """
    key, value = entry
    team = [*batch_size, 1]
    full = [*batch_size, n_agents, 1]
    shape = list(value.shape)
    if shape == full:
        return value
    if shape == team:
        return value.unsqueeze(-2).expand(full)
    other, other_shape = known_by
    raise SpecError(
        f"{owner}: {quoted(key)} {shape} is neither per agent {full} nor of the team {team}. By {quoted(other)} "
        f"{list(other_shape)}, {group_name(other)} has {n_agents} agents; the batch size is {list(batch_size)}."
    )
