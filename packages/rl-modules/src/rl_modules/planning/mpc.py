"""Model-predictive control: the first action of the best plan, found by imagining many."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_core import EnvBase, TensorSpec
from rl_core.envs.stack_steps import stack_steps
from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key, as_path

__all__ = ["MPCPlannerBase"]


class MPCPlannerBase(TensorDictModuleBase):
    """A policy that plans in an environment and acts by its plan's first action; a subclass defines :meth:`planning`.

    Args:
        env: a stateless environment (``batch_locked`` is False), such as a :class:`~rl_core.ModelBasedEnvBase`: the
            state to start from is that of the TensorDict that is given.
        action_key: the action.
    """

    def __init__(self, env: EnvBase, action_key: Key = "action") -> None:
        super().__init__()
        if env.batch_locked:
            raise PolicyError(
                f"{type(self).__name__} imagines many plans at once from the states it is given; "
                f"{type(env).__name__} keeps its state to itself (batch_locked). Use a stateless environment, or a "
                "ModelBasedEnvBase around a world model"
            )
        self.env = env
        self.action_key = as_key(action_key)
        keys = [*env.observation_keys, *(key for key in env.state_keys if key not in env.observation_keys)]
        self.in_keys = keys  # type: ignore[assignment]
        self.out_keys = [self.action_key]  # type: ignore[list-item]

    @abstractmethod
    def planning(self, tensordict: TensorDictBase) -> Tensor:
        """The action ``[*B, *action]`` for the states that a TensorDict holds; nothing is written."""

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the action."""
        return tensordict.set(self.action_key, self.planning(tensordict))

    @property
    def action_spec(self) -> TensorSpec:
        """The spec of one environment's action."""
        leaf = self.env.full_action_spec[self.action_key]
        return leaf[(0,) * leaf.batch_ndim] if leaf.batch_ndim else leaf

    def _candidates(self, tensordict: TensorDictBase, count: int) -> TensorDictBase:
        """The states, each ``count`` times: ``[*B, count]``."""
        present = [key for key in [*self.in_keys, *self.env.done_keys] if tensordict.get(key, None) is not None]
        states = tensordict.select(*present)
        dims = states.batch_dims
        return states.unsqueeze(dims).expand(*states.batch_size, count).clone()

    def _imagine(self, states: TensorDictBase, plans: Tensor) -> list[TensorDictBase]:
        """Step through plans ``[*B, K, H, *action]`` from states ``[*B, K]``; no row is reset."""
        td = TensorDict(dict(states.items()), batch_size=states.batch_size, device=states.device)
        steps: list[TensorDictBase] = []
        for action in plans.unbind(states.batch_dims):
            td = self.env.step(td.set(self.action_key, action))
            steps.append(td)
            td = self.env.step_mdp(td)
        return steps

    def _returns(self, steps: list[TensorDictBase], reward_key: Key) -> Tensor:
        """Sum of each plan's rewards up to its first end, ``[*B, K]``."""
        path = as_path(reward_key)
        done_key = self.env.end_groups[0].done
        lead = steps[0].batch_size
        total: Any = 0.0
        alive = torch.ones(lead, dtype=torch.bool, device=steps[0].device)
        for step in steps:
            reward = step.get(as_key(path)).reshape(*lead, -1).sum(-1)
            total = total + torch.where(alive, reward, 0.0)
            alive = alive & ~step.get("next").get(done_key).reshape(*lead, -1).any(-1)
        return total

    def _rollout(self, steps: list[TensorDictBase]) -> TensorDictBase:
        """The steps as one TensorDict ``[*B, K, H]``."""
        return stack_steps(steps, steps[0].batch_dims, None)
