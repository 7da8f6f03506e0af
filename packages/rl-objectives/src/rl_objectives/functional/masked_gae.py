"""Generalised advantage estimation of agents that do not act in every row: dead, waiting for their turn, or padding."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import LossError, SpecError
from rl_objectives import native
from rl_objectives.functional.own_steps import own_steps
from rl_objectives.functional.scan import reverse_scan
from rl_objectives.functional.time_series import Discount, as_number, check_series, common_dtype, layout, per_step

__all__ = ["masked_generalized_advantage_estimate"]


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
    time_dim: int = -2,
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
        state_value: V, [*B, T, F] (for the agents of a group [*B, T, n, 1], with ``time_dim=-3``).
        next_state_value: V of the observation that the row led to, same shape.
        reward: same shape.
        done: bool, same shape.
        terminated: bool, same shape.
        acts: bool, broadcasts to the reward: the agent acts in the row.
        exists: bool, broadcasts to the reward: False in padding, across which nothing flows; None: all rows exist.
        time_dim: index of T.

    Returns:
        ``(advantage, value_target)``, of the reward's shape: 0 and V where the agent does not act.

    Raises:
        SpecError: two shapes differ, or a flag is not bool.

    >>> acts = torch.tensor([[True], [False], [True]])
    >>> reward, zeros, never = torch.ones(3, 1), torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    >>> advantage, _ = masked_generalized_advantage_estimate(0.5, 1.0, zeros, zeros, reward, never, never, acts)
    >>> advantage.squeeze(-1)
    tensor([2.5000, 0.0000, 1.0000])
    """
    values = {"state_value": state_value, "next_state_value": next_state_value, "reward": reward}
    time = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    state_value, next_state_value, reward = common_dtype(state_value, next_state_value, reward)
    acts = _like_reward("acts", acts, reward)
    exists = None if exists is None else _like_reward("exists", exists, reward)
    series = (state_value, next_state_value, reward)
    graph = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in (gamma, lmbda))
    if native.usable(*series) and not graph:
        everywhere = torch.ones((), dtype=torch.bool).expand(reward.shape)
        flags = (done, terminated, acts, everywhere if exists is None else exists)
        return _compiled(gamma, lmbda, series, flags, time)
    step = own_steps(state_value, next_state_value, reward, done, terminated, acts, exists, time)
    discount = per_step("gamma", gamma, reward)
    delta = step.reward + discount * step.next_value.masked_fill(step.terminated, 0) - state_value
    trace = (discount * per_step("lmbda", lmbda, reward)).masked_fill(step.done, 0)
    # Rows in which the agent does not act hand on what lies behind them: the recurrence then runs over own rows alone.
    idle = ~step.acts
    advantage = reverse_scan(delta.masked_fill(idle, 0), trace.masked_fill(idle, 1), time).masked_fill(idle, 0)
    return advantage, advantage + state_value


def _compiled(
    gamma: Discount, lmbda: Discount, series: tuple[Tensor, ...], flags: tuple[Tensor, ...], time: int
) -> tuple[Tensor, Tensor]:
    reward = series[2]
    shape, numbers = layout(reward.shape, time), (as_number(gamma), as_number(lmbda))
    if numbers[0] is not None and numbers[1] is not None:
        inputs = [*series, *flags]
        advantage, target = native.run("rl_masked_gae", inputs, shape, (numbers[0], numbers[0] * numbers[1]), 2)
        return advantage, target
    discount = per_step("gamma", gamma, reward)
    inputs = [*series, discount, discount * per_step("lmbda", lmbda, reward), *flags]
    advantage, target = native.run("rl_masked_gae_per_step", inputs, shape, (), 2)
    return advantage, target


def _like_reward(name: str, mask: Tensor, reward: Tensor) -> Tensor:
    """The mask, expanded to the reward's shape.

    Raises:
        SpecError: it is not bool, or does not broadcast to that shape.
    """
    if mask.dtype is not torch.bool:
        raise SpecError(f"{name} must be a bool tensor; got {mask.dtype}. Convert it with {name}.bool().")
    if mask.ndim > reward.ndim or torch.broadcast_shapes(mask.shape, reward.shape) != reward.shape:
        raise LossError(f"{name} {list(mask.shape)} does not broadcast to the reward {list(reward.shape)}")
    return mask.expand(reward.shape)
