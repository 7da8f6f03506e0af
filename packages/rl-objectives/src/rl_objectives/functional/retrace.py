"""Retrace(lambda): action values of a policy from another policy's trajectories, safe for any pair of the two."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_objectives.functional.scan import reverse_scan
from rl_objectives.functional.time_series import Discount, check_series, common_dtype, last_step, per_step

__all__ = ["retrace_return_estimate"]


def retrace_return_estimate(
    gamma: Discount,
    lmbda: Discount,
    log_pi: Tensor,
    log_mu: Tensor,
    action_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    c_thresh: float = 1.0,
    time_dim: int = -2,
) -> Tensor:
    r"""Targets for the action values of the actions taken.

    .. math::
        c_t = \lambda \min(\bar c, \pi / \mu), \qquad
        G_t = r_t + \gamma (1 - m_t) [V'_t + (1 - d_t) c_{t+1} (G_{t+1} - Q_{t+1})]

    with m ``terminated``, d ``done`` and V' the expectation of Q under pi in the next state. The bracket ends with V'
    at a done step and at the batch's last one.

    Args:
        gamma: discount per step, in [0, 1]; a number, or a tensor that broadcasts to the reward.
        lmbda: trace decay, in [0, 1]; likewise.
        log_pi: log-probability of the action taken under the policy to evaluate, [*B, T, F].
        log_mu: the same under the policy that took it, [*B, T, F].
        action_value: Q of the state and the action taken, [*B, T, F].
        next_state_value: E_pi[Q] in the state that the step led to, [*B, T, F].
        reward: [*B, T, F].
        done: bool [*B, T, F].
        terminated: bool [*B, T, F]. None: same as ``done``.
        c_thresh: the largest importance weight, > 0.
        time_dim: index of T.

    Returns:
        The targets, [*B, T, F].

    Raises:
        SpecError: two shapes differ, or a flag is not bool.

    Munos et al., 2016, Safe and Efficient Off-Policy Reinforcement Learning, eq. 3 and 4, arXiv 1606.02647.

    >>> done, zero, one = torch.tensor([[False], [True]]), torch.zeros(2, 1), torch.ones(2, 1)
    >>> retrace_return_estimate(0.5, 1.0, zero, zero, zero, zero, one, done).squeeze(-1)
    tensor([1.5000, 1.0000])
    """
    terminated = done if terminated is None else terminated
    values = {
        "reward": reward,
        "log_pi": log_pi,
        "log_mu": log_mu,
        "action_value": action_value,
        "next_state_value": next_state_value,
    }
    time_dim = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    log_ratio, action_value, next_state_value, reward = common_dtype(
        log_pi - log_mu, action_value, next_state_value, reward
    )
    discount = per_step("gamma", gamma, reward)
    weight = per_step("lmbda", lmbda, reward) * log_ratio.exp().clamp(max=c_thresh)
    error = reward + discount * next_state_value.masked_fill(terminated, 0) - action_value
    alone = done | terminated | last_step(done, time_dim)
    # A masked_fill, not a product: the last step's weight wraps around, and may be anything.
    trace = (discount * torch.roll(weight, -1, time_dim)).masked_fill(alone, 0)
    return action_value + reverse_scan(error, trace, time_dim)
