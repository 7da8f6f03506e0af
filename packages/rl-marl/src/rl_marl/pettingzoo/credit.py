"""``credit_turns``: every reward to the action that earned it, in a batch of steps of agents that take turns.

A step row cannot hold what its action will have earned by the time the agent acts again: nobody knows it yet. So the
environment writes each reward into the row in which it falls due, and this function, over a whole batch, moves it back.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import KeyMissingError, SpecError

__all__ = ["credit_turns"]


def credit_turns(batch: TensorDictBase, groups: Iterable[str]) -> TensorDictBase:
    """Make each row in which an agent acts (its mask is True) a whole transition of that agent, up to its next turn.

    Let agent i act in row t, and be next in turn (or ended, or the episode be over) after row u >= t. Then in row t

    - ``("next", group, "reward")`` becomes the sum of its rewards in the rows t ... u, undiscounted: what it earned
      from its action to its next one;
    - everything else under ``("next", group)`` for agent i is taken from row u: the observation of its next turn, its
      end flags, its masks.

    Rewards of rows in which it does not act become 0; one that falls due before its first action belongs to none and is
    left out. An agent's rows with mask True are then, in order, exactly its own trajectory as a loop over
    ``env.agent_iter()`` and ``env.last()`` gives it. A row whose turn does not come to its end within the batch is
    incomplete: its mask becomes False, so that nothing is learnt from half a transition. Where everybody acts in every
    row, nothing changes.

    Args:
        batch: [*B, T] of consecutive steps, time last; groups hold ``"mask"`` bool [*B, T, n].
        groups: names of the groups, for example ``env.group_map``.

    Returns:
        A new TensorDict; the batch is left as it is.

    Raises:
        KeyMissingError: a group has no mask.
        SpecError: the batch has no time dimension.
    """
    if not batch.batch_dims:
        raise SpecError("credit_turns needs a batch of consecutive steps, [*B, T]; the batch size is []")
    result = batch.copy()
    result.set("next", batch.get("next").copy())
    for group in groups:
        _credit_group(batch, result, group)
    return result


def _credit_group(batch: TensorDictBase, result: TensorDictBase, group: str) -> None:
    now, ahead = batch.get(group), batch.get(("next", group))
    mask = now.get("mask", None)
    if mask is None:
        raise KeyMissingError(
            f"credit_turns reads {(group, 'mask')!r}, which tells who acts; the group has "
            f"{', '.join(sorted(map(str, now.keys())))}. Make the environment with use_mask=True"
        )
    time = batch.batch_dims - 1
    closes = _turn_ends(batch, ahead)
    end = _next_true(closes, time)
    reward = ahead.get("reward")
    earned = _sums(reward, _wide(closes, reward), time)
    complete = mask & (end < mask.shape[time])
    where = torch.where(complete, end, torch.arange(mask.shape[time]).reshape(-1, 1).to(end.device))
    moved = ahead.apply(lambda leaf: leaf.gather(time, _index(where, leaf)))
    moved.set("reward", torch.where(_wide(complete, reward), earned, 0))
    result.set(("next", group), moved)
    changed = now.copy()
    changed.set("mask", complete)
    result.set(group, changed)


def _turn_ends(batch: TensorDictBase, ahead: TensorDictBase) -> Tensor:
    """Bool [*B, T, n]: after this row the agent acts, or has ended, or the episode has."""
    over = batch.get(("next", "done"))
    ended = ahead.get("done", None)
    ends = ahead.get("mask") | over
    return ends if ended is None else ends | ended.squeeze(-1)


def _next_true(flags: Tensor, dim: int) -> Tensor:
    """Index along ``dim`` of the first True at or after each place; the length where there is none."""
    steps = flags.shape[dim]
    places = torch.arange(steps, device=flags.device).reshape(-1, *(1,) * (flags.ndim - dim - 1))
    return torch.where(flags, places, steps).flip(dim).cummin(dim).values.flip(dim)


def _sums(reward: Tensor, closes: Tensor, dim: int) -> Tensor:
    """Sums of rewards from each row to the end of its turn; one pass backward."""
    total = torch.zeros_like(reward.select(dim, 0))
    sums = torch.empty_like(reward)
    for t in reversed(range(reward.shape[dim])):
        now = reward.select(dim, t)
        total = torch.where(closes.select(dim, t), now, now + total)
        sums.select(dim, t).copy_(total)
    return sums


def _wide(flags: Tensor, like: Tensor) -> Tensor:
    """Flags [*B, T, n] with as many dimensions as ``like``."""
    return flags.reshape(*flags.shape, *(1,) * (like.ndim - flags.ndim))


def _index(where: Tensor, leaf: Tensor) -> Tensor:
    return _wide(where, leaf).expand(leaf.shape)
