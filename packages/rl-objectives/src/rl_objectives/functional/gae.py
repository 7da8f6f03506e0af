"""Generalised advantage estimation."""

from __future__ import annotations

from torch import Tensor

from rl_objectives import native
from rl_objectives.functional.masked_gae import masked_generalized_advantage_estimate
from rl_objectives.functional.scan import reverse_scan
from rl_objectives.functional.time_series import Discount, as_number, check_series, common_dtype, layout, per_step

__all__ = ["generalized_advantage_estimate", "vec_generalized_advantage_estimate"]


def generalized_advantage_estimate(
    gamma: Discount,
    lmbda: Discount,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Exponentially weighted advantages and their value targets.

    .. math::
        \delta_t = r_t + \gamma (1 - m_t) V'_t - V_t, \qquad
        A_t = \delta_t + \gamma \lambda (1 - d_t) A_{t+1}, \qquad
        G_t = A_t + V_t

    with m ``terminated`` and d ``done``. The last step of the batch bootstraps through V' whether or not it is done.

    Args:
        gamma: discount per step, in [0, 1]; a number, or a tensor that broadcasts to the reward.
        lmbda: trace decay, in [0, 1]; likewise.
        state_value: V of each step's observation, [*B, T, F].
        next_state_value: V of the observation that the step led to (the true last one at an end), [*B, T, F].
        reward: [*B, T, F].
        done: bool [*B, T, F]: the trajectory ends with this step, by termination or truncation.
        terminated: bool [*B, T, F]: the step led to a terminal state, which has no future. None: same as ``done``.
        time_dim: index of T.
        mask: bool, broadcasts to the reward: False in rows in which the agent does not act (it is dead, or waits for
            its turn). See :func:`~rl_objectives.functional.masked_gae.masked_generalized_advantage_estimate`.

    Returns:
        ``(advantage, value_target)``, each [*B, T, F], in the widest dtype of the inputs.

    Raises:
        SpecError: two shapes differ, or a flag is not bool.

    Schulman et al., 2015, High-Dimensional Continuous Control Using Generalized Advantage Estimation, eq. 16,
    arXiv 1506.02438.

    >>> import torch
    >>> value, next_value = torch.tensor([[0.5], [0.5], [0.5]]), torch.tensor([[0.5], [0.5], [2.0]])
    >>> done = torch.tensor([[False], [False], [True]])
    >>> advantage, target = generalized_advantage_estimate(
    ...     0.9, 0.8, value, next_value, torch.ones(3, 1), done, torch.zeros_like(done)
    ... )
    >>> advantage.squeeze(-1)
    tensor([2.8263, 2.6060, 2.3000])
    """
    terminated = done if terminated is None else terminated
    if mask is not None:
        series = (state_value, next_state_value, reward, done, terminated)
        return masked_generalized_advantage_estimate(gamma, lmbda, *series, mask, time_dim=time_dim)
    values = {"state_value": state_value, "next_state_value": next_state_value, "reward": reward}
    time_dim = check_series(time_dim, {"done": done, "terminated": terminated}, values)
    state_value, next_state_value, reward = common_dtype(state_value, next_state_value, reward)
    if native.usable(state_value, next_state_value, reward):
        numbers = as_number(gamma), as_number(lmbda)
        if numbers[0] is not None and numbers[1] is not None:
            inputs = [state_value, next_state_value, reward, done, terminated]
            advantage, target = native.run(
                "rl_gae", inputs, layout(reward.shape, time_dim), (numbers[0], numbers[1]), 2
            )
            return advantage, target
    discount = per_step("gamma", gamma, reward)
    delta = reward + discount * next_state_value.masked_fill(terminated, 0) - state_value
    trace = (discount * per_step("lmbda", lmbda, reward)).masked_fill(done, 0)
    advantage = reverse_scan(delta, trace, time_dim)
    return advantage, advantage + state_value


vec_generalized_advantage_estimate = generalized_advantage_estimate
"""The same function: there is one implementation, compiled or vectorised over time."""
