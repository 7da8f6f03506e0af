"""Returns over a fixed number of steps, then a bootstrap."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_objectives import native
from rl_objectives.functional.time_series import Discount, check_series, common_dtype, last_step, layout, per_step

__all__ = ["n_step_return_estimate"]


def n_step_return_estimate(
    n_steps: int,
    gamma: Discount,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    r"""The discounted sum of n rewards and the value of where they led.

    .. math::
        G_t = \sum_{k=t}^{j} \gamma^{k-t} r_k + \gamma^{j-t+1} (1 - m_j) V'_j, \qquad j = \min(t + n - 1, e_t, T - 1)

    with e_t the first done step at or after t and m ``terminated``: a trajectory that is over sooner, or the end of the
    batch, gives fewer rewards, and its own bootstrap.

    Args:
        n_steps: at least 1. One is TD0; T or more is TD1.
        gamma: discount per step, in [0, 1]; a number, or a tensor that broadcasts to the reward.
        next_state_value: V of the observation that the step led to, [*B, T, F].
        reward: [*B, T, F].
        done: bool [*B, T, F]: the trajectory ends with this step.
        terminated: bool [*B, T, F]: the step led to a terminal state. None: same as ``done``.
        time_dim: index of T.

    Returns:
        The returns, [*B, T, F].

    Raises:
        SpecError: two shapes differ, a flag is not bool, or n_steps is less than 1.

    Sutton and Barto, 2018, Reinforcement Learning, eq. 7.1.

    >>> done = torch.zeros(3, 1, dtype=torch.bool)
    >>> n_step_return_estimate(2, 0.5, torch.full((3, 1), 4.0), torch.ones(3, 1), done).squeeze(-1)
    tensor([2.5000, 2.5000, 3.0000])
    """
    if n_steps < 1:
        raise SpecError(f"n_steps is at least 1; got {n_steps}")
    terminated = done if terminated is None else terminated
    values = {"next_state_value": next_state_value, "reward": reward}
    time_dim = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    next_state_value, reward = common_dtype(next_state_value, reward)
    coefficient = per_step("gamma", gamma, reward).masked_fill(terminated, 0)
    one_step = reward + coefficient * next_state_value.masked_fill(terminated, 0)
    if native.usable(one_step, reward, coefficient):
        inputs = [one_step, reward, coefficient, done]
        return native.run("rl_n_step", inputs, layout(reward.shape, time_dim), (float(n_steps),), 1)[0]
    alone, returns = done | last_step(done, time_dim), one_step
    for _ in range(1, min(n_steps, reward.shape[time_dim])):
        ahead = coefficient * returns.roll(-1, time_dim).masked_fill(alone | terminated, 0)
        returns = torch.where(alone, one_step, reward + ahead)
    return returns
