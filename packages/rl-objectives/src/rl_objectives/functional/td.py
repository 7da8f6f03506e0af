"""Temporal-difference returns: one step (TD0), to the end (TD1), and the mixture of all (TD(lambda)).

Each ``*_advantage_estimate`` is the return less the state's value. Sutton and Barto, 2018, Reinforcement Learning,
chapters 6, 7 and 12.
"""

from __future__ import annotations

from torch import Tensor

from rl_core.errors import SpecError
from rl_objectives import native
from rl_objectives.functional.scan import reverse_scan
from rl_objectives.functional.time_series import (
    Discount,
    as_number,
    check_series,
    common_dtype,
    last_step,
    layout,
    per_step,
)

__all__ = [
    "td0_advantage_estimate",
    "td0_return_estimate",
    "td1_advantage_estimate",
    "td1_return_estimate",
    "td_lambda_advantage_estimate",
    "td_lambda_return_estimate",
    "vec_td1_advantage_estimate",
    "vec_td1_return_estimate",
    "vec_td_lambda_advantage_estimate",
    "vec_td_lambda_return_estimate",
]


def td0_return_estimate(
    gamma: Discount,
    next_state_value: Tensor,
    reward: Tensor,
    terminated: Tensor | None = None,
    *,
    done: Tensor | None = None,
) -> Tensor:
    r"""The one-step target ``r_t + gamma (1 - m_t) V'_t``.

    Args:
        gamma: discount, a number or a tensor that broadcasts to the reward.
        next_state_value: V of the observation that the step led to, any shape.
        reward: same shape.
        terminated: bool, same shape: the step led to a terminal state.
        done: used in place of ``terminated`` where only the union of both ends is known.

    Returns:
        The target, same shape.

    Raises:
        SpecError: two shapes differ, a flag is not bool, or no flag is given.

    >>> import torch
    >>> ended = torch.tensor([[False], [True]])
    >>> td0_return_estimate(0.5, torch.full((2, 1), 4.0), torch.ones(2, 1), ended).squeeze(-1)
    tensor([3., 1.])
    """
    flag = done if terminated is None else terminated
    if flag is None:
        raise SpecError(
            "td0_return_estimate needs terminated (or done): without it a terminal state would be bootstrapped"
        )
    check_series(0, {"terminated": flag}, {"next_state_value": next_state_value, "reward": reward})
    discount = per_step("gamma", gamma, reward) if isinstance(gamma, Tensor) else gamma
    return reward + discount * next_state_value.masked_fill(flag, 0)


def td0_advantage_estimate(
    gamma: Discount,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
) -> Tensor:
    """:func:`td0_return_estimate` less ``state_value``; ``terminated=None`` means the same as ``done``."""
    _same_shape(state_value, reward)
    return td0_return_estimate(gamma, next_state_value, reward, terminated, done=done) - state_value


def td_lambda_return_estimate(
    gamma: Discount,
    lmbda: Discount,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    r"""The lambda-return.

    .. math:: G_t = r_t + \gamma (1 - m_t) [(1 - \lambda) V'_t + \lambda G_{t+1}]

    where G_{t+1} is replaced by V'_t at a done step and at the batch's last step.

    Args:
        gamma: discount per step, in [0, 1]; a number, or a tensor that broadcasts to the reward.
        lmbda: mixture weight, in [0, 1]; likewise. 0 is TD0, 1 is TD1.
        next_state_value: V of the observation that the step led to, [*B, T, F].
        reward: [*B, T, F].
        done: bool [*B, T, F]: the trajectory ends with this step.
        terminated: bool [*B, T, F]: the step led to a terminal state. None: same as ``done``.
        time_dim: index of T.

    Returns:
        The returns, [*B, T, F].

    Raises:
        SpecError: two shapes differ, or a flag is not bool.

    Sutton and Barto, 2018, eq. 12.18-12.20.

    >>> import torch
    >>> done = torch.tensor([[False], [True]])
    >>> alive = torch.zeros_like(done)
    >>> td_lambda_return_estimate(0.5, 1.0, torch.full((2, 1), 4.0), torch.ones(2, 1), done, alive).squeeze(-1)
    tensor([2.5000, 3.0000])
    """
    terminated = done if terminated is None else terminated
    values = {"next_state_value": next_state_value, "reward": reward}
    time_dim = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    next_state_value, reward = common_dtype(next_state_value, reward)
    if native.usable(next_state_value, reward):
        numbers = as_number(gamma), as_number(lmbda)
        if numbers[0] is not None and numbers[1] is not None:
            inputs = [next_state_value, reward, done, terminated]
            return native.run("rl_td_lambda", inputs, layout(reward.shape, time_dim), (numbers[0], numbers[1]), 1)[0]
    discount = per_step("gamma", gamma, reward)
    weight = per_step("lmbda", lmbda, reward).masked_fill(done | last_step(done, time_dim), 0)
    here = reward + discount * ((1 - weight) * next_state_value).masked_fill(terminated, 0)
    return reverse_scan(here, (discount * weight).masked_fill(terminated, 0), time_dim)


def td_lambda_advantage_estimate(
    gamma: Discount,
    lmbda: Discount,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """:func:`td_lambda_return_estimate` less ``state_value``."""
    _same_shape(state_value, reward)
    target = td_lambda_return_estimate(gamma, lmbda, next_state_value, reward, done, terminated, time_dim=time_dim)
    return target - state_value


def td1_return_estimate(
    gamma: Discount,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    r"""The discounted sum of all rewards to come; V' stands for the rest at a truncation and at the batch's last step.

    :func:`td_lambda_return_estimate` with lambda 1, which documents the arguments.

    >>> import torch
    >>> done = torch.zeros(2, 1, dtype=torch.bool)
    >>> td1_return_estimate(0.5, torch.full((2, 1), 4.0), torch.ones(2, 1), done).squeeze(-1)
    tensor([2.5000, 3.0000])
    """
    return td_lambda_return_estimate(gamma, 1.0, next_state_value, reward, done, terminated, time_dim=time_dim)


def td1_advantage_estimate(
    gamma: Discount,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> Tensor:
    """:func:`td1_return_estimate` less ``state_value``."""
    _same_shape(state_value, reward)
    return td1_return_estimate(gamma, next_state_value, reward, done, terminated, time_dim=time_dim) - state_value


def _same_shape(state_value: Tensor, reward: Tensor) -> None:
    check_series(0, {}, {"state_value": state_value, "reward": reward})


# There is one implementation, compiled or vectorised over time: the field's names for a vectorised one mean the same.
vec_td1_return_estimate = td1_return_estimate
vec_td1_advantage_estimate = td1_advantage_estimate
vec_td_lambda_return_estimate = td_lambda_return_estimate
vec_td_lambda_advantage_estimate = td_lambda_advantage_estimate
