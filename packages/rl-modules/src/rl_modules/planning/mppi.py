"""Model-predictive path integral control."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core import EnvBase
from rl_core.errors import PolicyError
from rl_core.keys import Key
from rl_modules.planning.cem import check_sizes, draw_plans, elite
from rl_modules.planning.mpc import MPCPlannerBase

__all__ = ["MPPIPlanner"]


class MPPIPlanner(MPCPlannerBase):
    r"""Plans by path integrals: like :class:`CEMPlanner`, with the best plans weighted by their returns.

    .. math:: w_i = exp(temperature (R_i - \max_j R_j)), \quad mean = \sum_i w_i a_i / \sum_i w_i

    and std likewise, over the ``top_k`` best (Williams, Aldrich, Theodorou 2017, arXiv 1509.01149; in this form Hansen,
    Wang, Su 2022, "Temporal Difference Learning for Model Predictive Control", arXiv 2203.04955, equations 4 and 5).

    Args:
        env: a stateless environment (``batch_locked`` is False).
        advantage_module: writes "advantage" ``[*B, K, H, 1]`` into imagined plans ``[*B, K, H]``, for instance a
            TD-lambda estimator with a value network; the advantage of a plan's first step is its R. Where None, R is
            the sum of rewards up to the first end.
        temperature: sharpness of the weights; the larger, the more the best plan counts.
        planning_horizon: H, steps of a plan.
        optim_steps: rounds.
        num_candidates: plans drawn in each round.
        top_k: plans that are weighted.
        reward_key: the reward.
        action_key: the action.
    """

    def __init__(
        self,
        env: EnvBase,
        advantage_module: Callable[[TensorDictBase], TensorDictBase] | nn.Module | None = None,
        temperature: float = 1.0,
        planning_horizon: int = 5,
        optim_steps: int = 6,
        num_candidates: int = 512,
        top_k: int = 64,
        reward_key: Key = ("next", "reward"),
        action_key: Key = "action",
    ) -> None:
        super().__init__(env, action_key)
        check_sizes(self, planning_horizon, optim_steps, num_candidates, top_k)
        if temperature <= 0:
            raise ValueError(f"MPPIPlanner needs a temperature above 0; got {temperature}")
        self.advantage_module, self.temperature = advantage_module, temperature
        self.planning_horizon, self.optim_steps = planning_horizon, optim_steps
        self.num_candidates, self.top_k = num_candidates, top_k
        self.reward_key = reward_key

    def planning(self, tensordict: TensorDictBase) -> Tensor:
        """The action ``[*B, *action]``."""
        states = self._candidates(tensordict, self.num_candidates)
        spec, dim = self.action_spec, tensordict.batch_dims
        shape = (*tensordict.batch_size, 1, self.planning_horizon, *spec.shape)
        mean = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        std = torch.ones_like(mean)
        for _ in range(self.optim_steps):
            plans = draw_plans(mean, std, self.num_candidates, dim, spec)
            best, returns = elite(plans, self._scores(self._imagine(states, plans)), self.top_k)
            weight = (self.temperature * (returns - returns[..., :1])).softmax(-1)
            weight = weight.reshape(*weight.shape, *[1] * (best.ndim - weight.ndim))
            mean = (weight * best).sum(dim, keepdim=True)
            std = (weight * (best - mean).square()).sum(dim, keepdim=True).sqrt()
        return spec.project(mean.select(dim, 0).select(dim, 0))

    def _scores(self, steps: list[TensorDictBase]) -> Tensor:
        if self.advantage_module is None:
            return self._returns(steps, self.reward_key)
        data = self.advantage_module(self._rollout(steps))
        advantage = data.get("advantage", None)
        if advantage is None:
            raise PolicyError(
                f"MPPIPlanner's advantage_module {type(self.advantage_module).__name__} wrote no 'advantage'; it wrote "
                f"{list(data.keys())}"
            )
        return advantage.select(data.batch_dims - 1, 0).flatten(data.batch_dims - 1).sum(-1)
