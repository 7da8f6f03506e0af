"""Generalised advantage estimation of agents that do not act in every row: dead, waiting for their turn, or padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_objectives.functional.scan import reverse_scan
from rl_objectives.functional.time_series import Discount, check_series, common_dtype

__all__ = ["Spans", "masked_generalized_advantage_estimate", "own_spans"]


class Spans(NamedTuple):
    """How the rows of a time series divide into spans, each led by a row in which the agent acts."""

    owner: Tensor
    """int64 [*B, T, F]: index of the row that leads the span, 0 outside of all spans."""
    within: Tensor
    """bool [*B, T, F]: the row lies in a span."""
    last: Tensor
    """int64 [*B, T, F]: in the row that leads a span the index of its last row, elsewhere 0."""


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


def masked_generalized_advantage_estimate(
    gamma: Discount,
    lmbda: Discount,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    acts: Tensor,
    exists: Tensor | None = None,
    *,
    time_dim: int = -3,
) -> tuple[Tensor, Tensor]:
    r"""GAE on each agent's own rows, as if they were its trajectory.

    With k_0 < k_1 < ... the rows in which an agent acts, and the span of k the rows from k to the one before its next
    own row, or to the first end in between (whichever is first):

    .. math::
        \delta_k = \sum_{j \in span(k)} r_j + \gamma (1 - m_k) V'_k - V_k, \qquad
        A_k = \delta_k + \gamma \lambda (1 - d_k) A_{next(k)}

    d and m are the flags of the span's last row. V' is the value of the row that follows where the span ends because
    the agent acts again after having waited, else the next value of the span's last row (at an end, at the batch's
    last row, and where the next own row follows at once). The discount is applied once per own row.

    Rows outside of all spans (before an agent's first own row, or between an end and its next own row) count for
    nothing, whatever they hold.

    Args:
        gamma: discount per own row, in [0, 1]; a number, or a tensor that broadcasts to the reward.
        lmbda: trace decay, in [0, 1]; likewise.
        state_value: V, [*B, T, n, 1].
        next_state_value: V of the observation that the row led to, [*B, T, n, 1].
        reward: [*B, T, n, 1].
        done: bool [*B, T, n, 1].
        terminated: bool [*B, T, n, 1].
        acts: bool, broadcasts to the reward: the agent acts in the row.
        exists: bool, broadcasts to the reward: False in padding, across which nothing flows; None: all rows exist.
        time_dim: index of T.

    Returns:
        ``(advantage, value_target)``, each [*B, T, n, 1]: 0 and V where the agent does not act.

    Raises:
        SpecError: two shapes differ, or a flag is not bool.
    """
    values = {"state_value": state_value, "next_state_value": next_state_value, "reward": reward}
    time = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    state_value, next_state_value, reward = common_dtype(state_value, next_state_value, reward)
    acts = acts.expand(reward.shape)
    ends = done | terminated
    if exists is not None:
        exists = exists.expand(reward.shape)
        acts, terminated = acts & exists, terminated & exists
        ends = (ends & exists) | _cuts(exists, time)
    spans = own_spans(acts, ends, time)
    earned = torch.zeros_like(reward).scatter_add(time, spans.owner, reward.masked_fill(~spans.within, 0))
    ended, no_future = ends.gather(time, spans.last), terminated.gather(time, spans.last)
    following = _following_value(state_value, next_state_value, spans, ended, time)
    delta = earned + gamma * following.masked_fill(no_future, 0) - state_value
    trace = (gamma * lmbda * delta.new_ones(()).expand_as(delta)).masked_fill(ended, 0)
    # Rows in which the agent does not act hand on what lies behind them: the recurrence then runs over own rows alone.
    advantage = reverse_scan(delta.masked_fill(~acts, 0), trace.masked_fill(~acts, 1), time).masked_fill(~acts, 0)
    return advantage, advantage + state_value


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
