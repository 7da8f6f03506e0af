"""V-trace: values and advantages of a policy from another policy's trajectories, by truncated importance weights."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_objectives import native
from rl_objectives.functional.own_steps import own_steps
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

__all__ = ["check_threshold", "vtrace_advantage_estimate"]


def vtrace_advantage_estimate(
    gamma: Discount,
    log_pi: Tensor,
    log_mu: Tensor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    rho_thresh: float | Tensor = 1.0,
    c_thresh: float | Tensor = 1.0,
    time_dim: int = -2,
    *,
    mask: Tensor | None = None,
    exists: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""V-trace value targets and policy-gradient advantages.

    .. math::
        \rho_t = \min(\bar\rho, \pi / \mu), \qquad c_t = \min(\bar c, \pi / \mu), \qquad
        \delta_t = \rho_t (r_t + \gamma (1 - m_t) V'_t - V_t)

    .. math::
        v_t - V_t = \delta_t + \gamma (1 - d_t) c_t (v_{t+1} - V_{t+1}), \qquad
        A_t = \rho_t (r_t + \gamma (1 - m_t) v_{t+1} - V_t)

    with m ``terminated`` and d ``done``. At a done step and at the batch's last one V'_t stands for v_{t+1}: nothing of
    the next episode is seen. Where pi = mu and both thresholds are at least 1 the target is the TD(1) return.

    Args:
        gamma: discount per step, in [0, 1]; a number, or a tensor that broadcasts to the reward.
        log_pi: log-probability of the action taken under the policy to evaluate, [*B, T, F].
        log_mu: the same under the policy that took it, [*B, T, F].
        state_value: V of each step's observation, [*B, T, F].
        next_state_value: V of the observation that the step led to (the true last one at an end), [*B, T, F].
        reward: [*B, T, F].
        done: bool [*B, T, F]: the trajectory ends with this step.
        terminated: bool [*B, T, F]: the step led to a terminal state. None: same as ``done``.
        rho_thresh: the largest weight of a step's error, > 0: it sets which policy's value is found.
        c_thresh: the largest weight in the trace, > 0: it sets how fast.
        time_dim: index of T.
        mask: bool, broadcasts to the reward: False in rows in which the agent does not act; its own rows then are its
            trajectory (:func:`~rl_objectives.functional.own_steps.own_steps`).
        exists: with ``mask``, likewise: False in padding.

    Returns:
        ``(advantage, value_target)``, each [*B, T, F].

    Raises:
        SpecError: two shapes differ, a flag is not bool, or a threshold is not positive.

    Espeholt et al., 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures,
    eq. 1 and section 4.2, arXiv 1802.01561.

    >>> done = torch.tensor([[False], [True]])
    >>> log_pi, log_mu = torch.log(torch.tensor([[0.2], [0.9]])), torch.log(torch.tensor([[0.4], [0.3]]))
    >>> zero, one = torch.zeros(2, 1), torch.ones(2, 1)
    >>> advantage, target = vtrace_advantage_estimate(0.5, log_pi, log_mu, zero, zero, one, done)
    >>> target.squeeze(-1)
    tensor([0.7500, 1.0000])
    """
    terminated = done if terminated is None else terminated
    values = {
        "reward": reward,
        "log_pi": log_pi,
        "log_mu": log_mu,
        "state_value": state_value,
        "next_state_value": next_state_value,
    }
    time_dim = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    rho_bar, c_bar = check_threshold("rho_thresh", rho_thresh), check_threshold("c_thresh", c_thresh)
    log_ratio, state_value, next_state_value, reward = common_dtype(
        log_pi - log_mu, state_value, next_state_value, reward
    )
    number = as_number(gamma)
    if mask is None and number is not None and native.usable(log_ratio, state_value, next_state_value, reward):
        inputs = [log_ratio, state_value, next_state_value, reward, done, terminated]
        shape = layout(reward.shape, time_dim)
        advantage, target = native.run("rl_vtrace", inputs, shape, (number, rho_bar, c_bar), 2)
        return advantage, target
    ratio, discount = log_ratio.exp(), per_step("gamma", gamma, reward)
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    if mask is not None:
        series, flags = (state_value, next_state_value, reward), (done, terminated)
        return _over_own_rows(discount, (rho, c), series, flags, (mask, exists), time_dim)
    alone = done | last_step(done, time_dim)
    delta = rho * (reward + discount * next_state_value.masked_fill(terminated, 0) - state_value)
    correction = reverse_scan(delta, (discount * c).masked_fill(alone, 0), time_dim)
    target = correction + state_value
    behind = torch.where(alone, next_state_value, target.roll(-1, time_dim)).masked_fill(terminated, 0)
    return rho * (reward + discount * behind - state_value), target


def _over_own_rows(
    discount: Tensor,
    ratios: tuple[Tensor, Tensor],
    series: tuple[Tensor, Tensor, Tensor],
    flags: tuple[Tensor, Tensor],
    masks: tuple[Tensor, Tensor | None],
    time: int,
) -> tuple[Tensor, Tensor]:
    """V-trace where the agent does not act in every row: other rows hand on what lies behind them."""
    (rho, c), (value, next_value, reward) = ratios, series
    step = own_steps(value, next_value, reward, *flags, *masks, time)
    idle = ~step.acts
    alone = step.done | ~(step.acts.flip(time).long().cumsum(time).flip(time) > 1)
    delta = rho * (step.reward + discount * step.next_value.masked_fill(step.terminated, 0) - value)
    trace = (discount * c).masked_fill(alone, 0)
    correction = reverse_scan(delta.masked_fill(idle, 0), trace.masked_fill(idle, 1), time)
    following = torch.where(step.acts.roll(-1, time), value.roll(-1, time), step.next_value)
    behind = torch.where(alone, step.next_value, following + correction.roll(-1, time))
    advantage = rho * (step.reward + discount * behind.masked_fill(step.terminated, 0) - value)
    return advantage.masked_fill(idle, 0), torch.where(idle, value, value + correction)


def check_threshold(name: str, value: float | Tensor) -> float:
    """The threshold as a number.

    Raises:
        SpecError: it is not positive.
    """
    number = float(value)
    if not number > 0:
        raise SpecError(f"{name} is the largest importance weight, a number > 0; got {number}")
    return number
