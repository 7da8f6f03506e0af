"""Temporal-difference returns of agents that do not act in every row: dead, waiting for their turn, or padding."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_objectives.functional.own_steps import own_steps
from rl_objectives.functional.scan import reverse_scan
from rl_objectives.functional.time_series import Discount, check_series, common_dtype, per_step

__all__ = ["masked_td_lambda_return_estimate"]


def masked_td_lambda_return_estimate(
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
) -> Tensor:
    r"""The lambda-return over an agent's own rows, as if they were its trajectory.

    .. math:: G_k = R_k + \gamma (1 - m_k) [(1 - \lambda) V'_k + \lambda G_{next(k)}]

    with the steps of :func:`~rl_objectives.functional.own_steps.own_steps`; G_{next(k)} is V'_k at an end and at the
    agent's last row. Lambda 0 is TD0, lambda 1 TD1.

    Args:
        gamma: discount per own row, in [0, 1]; a number, or a tensor that broadcasts to the reward.
        lmbda: mixture weight, in [0, 1]; likewise.
        state_value: V, [*B, T, F] (for the agents of a group [*B, T, n, 1], with ``time_dim=-3``).
        next_state_value: V of the observation that the row led to, same shape.
        reward: same shape.
        done: bool, same shape.
        terminated: bool, same shape.
        acts: bool, broadcasts to the reward: the agent acts in the row.
        exists: bool, broadcasts to the reward: False in padding; None: all rows exist.
        time_dim: index of T.

    Returns:
        The returns, of the reward's shape: V where the agent does not act.

    Raises:
        SpecError: two shapes differ, or a flag is not bool.
    """
    values = {"state_value": state_value, "next_state_value": next_state_value, "reward": reward}
    time = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    state_value, next_state_value, reward = common_dtype(state_value, next_state_value, reward)
    step = own_steps(state_value, next_state_value, reward, done, terminated, acts, exists, time)
    idle = ~step.acts
    # How many own rows lie behind each one: the last of them bootstraps.
    later = step.acts.flip(time).long().cumsum(time).flip(time) > 1
    weight = per_step("lmbda", lmbda, reward).masked_fill(step.done | ~later, 0)
    discount = per_step("gamma", gamma, reward)
    here = step.reward + discount * ((1 - weight) * step.next_value).masked_fill(step.terminated, 0)
    trace = (discount * weight).masked_fill(step.terminated, 0)
    # Rows in which the agent does not act hand on what lies behind them.
    returns = reverse_scan(here.masked_fill(idle, 0), trace.masked_fill(idle, 1), time)
    return torch.where(step.acts, returns, state_value)
