"""``ContainerRunner``: steps any environment, one TensorDict per step; the general twin of ``RowRunner``."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core.envs.base import EnvBase
from rl_core.envs.ends import any_done
from rl_core.envs.entries import put_entries
from rl_core.envs.stack_steps import stack_steps
from rl_core.envs.validation import edited_text
from rl_core.errors import EnvError, PolicyError
from rl_core.policy import wrap_policy

__all__ = ["ContainerRunner"]


class ContainerRunner:
    """Runs a policy in any environment.

    Args:
        env: the environment.
        policy: a function of a TensorDict, or None for random actions.
        n_steps: how many steps :meth:`run` takes by default.
        policy_device: where the policy acts; data move there and back.
        env_device: where the environment wants its inputs; default: where they were before the policy.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: Any,
        n_steps: int,
        policy_device: torch.device | None = None,
        env_device: torch.device | None = None,
    ) -> None:
        self.env, self.n_steps = env, n_steps
        self.policy_device, self.env_device = policy_device, env_device or env.device
        self.carry: TensorDictBase | None = None
        self._version = env.specs_version
        self._steps: list[TensorDictBase] = []  # of the run under way
        self._kept = 0  # how many of them share no memory with the policy
        self.use(policy)

    def use(self, policy: Any) -> None:
        """Act with another policy from the next step on."""
        self.policy = None if policy is None else wrap_policy(policy, self.env)

    def reset(self) -> None:
        """Start new episodes in every row; the environment may have other transforms than before."""
        self.carry = self.env.reset()
        self._version = self.env.specs_version

    def run(self, n_steps: int | None = None) -> TensorDictBase:
        """Take steps, going on where the last run ended: TensorDict ``[*B, T]``."""
        if self.carry is None:
            self.reset()
        elif self._version != self.env.specs_version:
            raise EnvError(edited_text(self.env))
        td = self.carry
        assert td is not None
        steps, self._kept = self._steps, 0
        steps.clear()
        for _ in range(self.n_steps if n_steps is None else n_steps):
            td = self.env.step(self._act(td))
            steps.append(td)
            ended = any_done(td.get("next"), self.env.end_groups, td.batch_dims)
            td = self.env.step_mdp(td)
            if ended is not None:
                td = self.env.maybe_reset(td)
        self.carry = td
        batch = stack_steps(steps, steps[0].batch_dims)
        steps.clear()
        return batch

    def keep(self) -> None:
        """Copy the steps that the run under way has taken, for their values to last.

        To be called between two policy calls, before a policy's parameters are written in place: outputs may be views
        of them (an expanded log-std is one).
        """
        for index in range(self._kept, len(self._steps)):
            self._steps[index] = self._steps[index].clone()
        self._kept = len(self._steps)

    def _act(self, td: TensorDictBase) -> TensorDictBase:
        if self.policy is None:
            return self.env.rand_action(td)
        given = td if self.policy_device is None else td.to(self.policy_device)
        result = self.policy(given)
        if not isinstance(result, TensorDictBase):
            raise PolicyError(
                f"the policy returned {type(result).__name__}; it must return a TensorDict with the action"
            )
        if self.policy_device is not None and self.env_device is not None:
            result = result.to(self.env_device)
        return result if result is td else put_entries(td, result)

    def state_dict(self) -> dict[str, Any]:
        """Where the next run goes on."""
        return {} if self.carry is None else {"carry": self.carry.to_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back; the environment restores its own state."""
        if "carry" in state_dict:
            from tensordict import TensorDict

            self.carry = TensorDict.from_dict(state_dict["carry"], batch_size=self.env.batch_size)
