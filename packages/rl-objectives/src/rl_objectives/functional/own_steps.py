"""The trajectory of an agent that does not act in every row: its own rows, with what happened until the next one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["OwnSteps", "Spans", "own_spans", "own_steps"]


class Spans(NamedTuple):
    """How the rows of a time series divide into spans, each led by a row in which the agent acts."""

    owner: Tensor
    """int64 [*B, T, F]: index of the row that leads the span, 0 outside of all spans."""
    within: Tensor
    """bool [*B, T, F]: the row lies in a span."""
    last: Tensor
    """int64 [*B, T, F]: in the row that leads a span the index of its last row, elsewhere 0."""


class OwnSteps(NamedTuple):
    """The steps of an agent, each at the row that leads its span; other rows hold numbers without a meaning."""

    reward: Tensor
    """[*B, T, F]: the sum over the span."""
    next_value: Tensor
    """[*B, T, F]: V of the agent's next own row; at an end and at the batch's last row the stored next value."""
    done: Tensor
    """bool [*B, T, F]: the span ends with an end flag, or before padding."""
    terminated: Tensor
    """bool [*B, T, F]."""
    acts: Tensor
    """bool [*B, T, F]: the own rows."""


def own_spans(acts: Tensor, ends: Tensor, time_dim: int) -> Spans:
    """The spans of an agent: from a row in which it acts to the row before its next one, or to an end between the two.

    Args:
        acts: bool [*B, T, F], True in the agent's own rows.
        ends: bool [*B, T, F], True where its trajectory ends or is cut.
        time_dim: index of T, non-negative.

    >>> acts = torch.tensor([True, False, False, True, True, False])
    >>> ends = torch.tensor([False, True, False, False, False, False])
    >>> spans = own_spans(acts, ends, 0)
    >>> spans.within.tolist(), spans.last[acts].tolist()
    ([True, True, False, True, True, True], [1, 3, 5])
    """
    steps = acts.shape[time_dim]
    index = _row_index(acts, time_dim)
    nowhere = torch.full_like(index, -1)
    owner = torch.where(acts, index, nowhere).cummax(time_dim).values
    ended = torch.where(ends, index, nowhere).cummax(time_dim).values
    ended_before = torch.cat([nowhere.narrow(time_dim, 0, 1), ended.narrow(time_dim, 0, steps - 1)], time_dim)
    within = (owner >= 0) & (ended_before < owner)
    owner = owner.clamp_min(0)
    last = torch.zeros_like(index).scatter_reduce(time_dim, owner, index.masked_fill(~within, 0), "amax")
    return Spans(owner, within, last)


def own_steps(
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    acts: Tensor,
    exists: Tensor | None,
    time_dim: int,
) -> OwnSteps:
    """The steps of an agent over its own rows.

    Rewards that arrive while it waits belong to its latest own row; an end flag raised while it waits ends that step.
    Rows outside of all spans (before its first own row, between an end and its next own row) count for nothing,
    whatever they hold.

    Args:
        value: V, [*B, T, F].
        next_value: V of the observation that the row led to, [*B, T, F].
        reward: [*B, T, F].
        done: bool [*B, T, F].
        terminated: bool [*B, T, F].
        acts: bool, broadcasts to the reward: the agent acts in the row.
        exists: bool, broadcasts to the reward: False in padding, across which nothing flows; None: all rows exist.
        time_dim: index of T, non-negative.
    """
    acts = acts.expand(reward.shape)
    ends = done | terminated
    if reward.shape[time_dim] == 0:
        return OwnSteps(reward, next_value, ends, terminated, acts)
    if exists is not None:
        exists = exists.expand(reward.shape)
        acts, terminated = acts & exists, terminated & exists
        ends = (ends & exists) | _cuts(exists, time_dim)
    spans = own_spans(acts, ends, time_dim)
    earned = torch.zeros_like(reward).scatter_add(time_dim, spans.owner, reward.masked_fill(~spans.within, 0))
    ended, no_future = ends.gather(time_dim, spans.last), terminated.gather(time_dim, spans.last)
    following = _following_value(value, next_value, spans, ended, time_dim)
    return OwnSteps(earned, following, ended, no_future, acts)


def _following_value(value: Tensor, next_value: Tensor, spans: Spans, ended: Tensor, time: int) -> Tensor:
    """V' of each span, at the row that leads it."""
    final = value.shape[time] - 1
    waited = (spans.last > _row_index(value, time)) & (spans.last < final) & ~ended
    again = value.gather(time, (spans.last + 1).clamp_max(final))
    return torch.where(waited, again, next_value.gather(time, spans.last))


def _cuts(exists: Tensor, time: int) -> Tensor:
    """True in the last row before padding."""
    steps = exists.shape[time]
    ahead = torch.cat([exists.narrow(time, 1, steps - 1), exists.narrow(time, steps - 1, 1)], time)
    return exists & ~ahead


def _row_index(like: Tensor, time: int) -> Tensor:
    """The index along time, int64, of the tensor's shape."""
    shape = [1] * like.ndim
    shape[time] = -1
    return torch.arange(like.shape[time], device=like.device).reshape(shape).expand(like.shape)
