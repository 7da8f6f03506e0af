"""The cross-entropy method."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import EnvBase, TensorSpec
from rl_core.keys import Key
from rl_modules.planning.mpc import MPCPlannerBase

__all__ = ["CEMPlanner", "check_sizes", "draw_plans", "elite"]


class CEMPlanner(MPCPlannerBase):
    """Plans by the cross-entropy method: draw plans, keep the best, fit a normal distribution to them, draw again.

    The first distribution is N(0, 1) for every action; plans are projected onto the action's spec. The action is the
    first one of the last distribution's mean. Rewards count up to a plan's first end.

    Args:
        env: a stateless environment (``batch_locked`` is False).
        planning_horizon: H, steps of a plan.
        optim_steps: rounds.
        num_candidates: plans drawn in each round.
        top_k: plans that the next distribution is fitted to.
        reward_key: the reward.
        action_key: the action.

    Source: Rubinstein 1999, "The Cross-Entropy Method for Combinatorial and Continuous Optimization".

    >>> from rl_core.testing import CountingEnv
    >>> CEMPlanner(CountingEnv(), planning_horizon=3, optim_steps=2, num_candidates=8, top_k=2)
    Traceback (most recent call last):
        ...
    rl_core.errors.PolicyError: CEMPlanner imagines many plans at once from the states it is given; ...
    """

    def __init__(
        self,
        env: EnvBase,
        planning_horizon: int,
        optim_steps: int,
        num_candidates: int,
        top_k: int,
        reward_key: Key = ("next", "reward"),
        action_key: Key = "action",
    ) -> None:
        super().__init__(env, action_key)
        check_sizes(self, planning_horizon, optim_steps, num_candidates, top_k)
        self.planning_horizon, self.optim_steps = planning_horizon, optim_steps
        self.num_candidates, self.top_k = num_candidates, top_k
        self.reward_key = reward_key

    def planning(self, tensordict: TensorDictBase) -> Tensor:
        """The action ``[*B, *action]``."""
        states = self._candidates(tensordict, self.num_candidates)
        spec = self.action_spec
        shape = (*tensordict.batch_size, 1, self.planning_horizon, *spec.shape)
        mean = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        std = torch.ones_like(mean)
        for _ in range(self.optim_steps):
            plans = draw_plans(mean, std, self.num_candidates, tensordict.batch_dims, spec)
            returns = self._returns(self._imagine(states, plans), self.reward_key)
            best, _ = elite(plans, returns, self.top_k)
            mean = best.mean(tensordict.batch_dims, keepdim=True)
            std = best.std(tensordict.batch_dims, keepdim=True, unbiased=False)
        return spec.project(mean.select(tensordict.batch_dims, 0).select(tensordict.batch_dims, 0))


def check_sizes(planner: object, horizon: int, rounds: int, candidates: int, top_k: int) -> None:
    """Refuse a planner without steps, rounds or candidates."""
    if min(horizon, rounds) < 1 or not 1 <= top_k <= candidates:
        raise ValueError(
            f"{type(planner).__name__} needs planning_horizon >= 1, optim_steps >= 1 and 1 <= top_k <= num_candidates; "
            f"got {horizon}, {rounds}, top_k={top_k} of {candidates}"
        )


def draw_plans(mean: Tensor, std: Tensor, count: int, dim: int, spec: TensorSpec) -> Tensor:
    """``count`` plans ``[*B, count, H, *action]`` from a normal distribution, projected onto the action's spec."""
    shape = list(mean.shape)
    shape[dim] = count
    noise = torch.randn(shape, dtype=mean.dtype, device=mean.device)
    return spec.project(mean + std * noise)


def elite(plans: Tensor, returns: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The best plans ``[*B, top_k, H, *action]`` and their returns ``[*B, top_k]``."""
    best, index = returns.topk(top_k, -1)
    dim = returns.ndim - 1
    index = index.reshape(*index.shape, *[1] * (plans.ndim - index.ndim))
    return plans.gather(dim, index.expand(*index.shape[: dim + 1], *plans.shape[dim + 1 :])), best
