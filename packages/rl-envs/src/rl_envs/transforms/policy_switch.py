"""``ConditionalPolicySwitch``: another policy, such as an opponent, takes the step that follows."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase
from torch import Tensor

from rl_core import reset_rows
from rl_core.envs.base import EnvBase
from rl_core.envs.ends import any_done
from rl_core.envs.entries import put_entries
from rl_core.errors import EnvError, PolicyError
from rl_envs.transforms.inner_steps import InnerSteps
from rl_envs.transforms.masked_rows import as_rows, choose, rows_kept

__all__ = ["ConditionalPolicySwitch"]


class ConditionalPolicySwitch(InnerSteps):
    """Where a condition holds after a step or a reset, another policy acts in the environment before this transform.

    Both steps are one step outside: the observation is that after the other policy's action, and so is the reward; the
    state between the two is seen by nobody. Where the first step ended the episode there is no second one.

    Args:
        policy: writes the action into the TensorDict that it is given.
        condition: a function of the TensorDict of observations and end flags to a bool, or a bool tensor ``[*B]`` or
            ``[*B, 1]``. In a batch of simulators all rows must agree.

    Raises:
        EnvError: a batch of simulators would have to step some rows only.

    Example:
        >>> import torch
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> opponent = lambda td: td.set("action", torch.zeros(1))
        >>> switch = ConditionalPolicySwitch(opponent, lambda td: td["observation"] % 2 == 1)
        >>> env = TransformedEnv(CountingEnv(length=9), switch)
        >>> env.rollout(3)["observation"].flatten()
        tensor([0., 2., 4.])
    """

    def __init__(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase],
        condition: Callable[[TensorDictBase], bool | Tensor],
    ) -> None:
        super().__init__()
        self.policy, self.condition = policy, condition
        self._inward: TensorDictBase | None = None

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._inward = tensordict.copy().exclude("next")
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        env = self.inner_env()
        if self._inward is None:
            raise EnvError("ConditionalPolicySwitch is stepped through its environment: env.step(td)")
        root, self._inward = self._inward, None
        ended = any_done(next_tensordict, env.end_groups, next_tensordict.batch_dims)
        acting = self._acting(next_tensordict)
        if ended is not None:
            acting &= ~ended
        if not bool(acting.any()):
            return next_tensordict
        self._check(env, acting | ended if ended is not None else acting)
        after = self._act(env, env.step_mdp(root.set("next", next_tensordict)))
        return after if bool(acting.all()) else choose(rows_kept(~acting), next_tensordict, after)

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        env = self.inner_env()
        asked, acting = reset_rows(tensordict), self._acting(tensordict_reset)
        acting = acting if asked is None else acting & asked
        if not bool(acting.any()):
            return tensordict_reset
        self._check(env, acting)
        after = self._act(env, tensordict_reset.copy())
        ended = any_done(after, env.end_groups, after.batch_dims)
        if ended is not None and bool((ended & acting).any()):
            raise EnvError("the other policy of ConditionalPolicySwitch ended an episode with its first action")
        first = after.exclude(*env.reward_keys)
        return first if bool(acting.all()) else choose(rows_kept(~acting), tensordict_reset, first)

    def _acting(self, tensordict: TensorDictBase) -> Tensor:
        return as_rows(self.condition(tensordict), tensordict, "the condition of ConditionalPolicySwitch").clone()

    def _act(self, env: EnvBase, root: TensorDictBase) -> TensorDictBase:
        result = self.policy(root)
        if not isinstance(result, TensorDictBase):
            raise PolicyError(
                f"the policy of ConditionalPolicySwitch returned {type(result).__name__}; it must return a TensorDict "
                "with the action"
            )
        return env.step(result if result is root else put_entries(root, result)).get("next")

    def _check(self, env: EnvBase, acting: Tensor) -> None:
        """Rows that ended are reset next, so they may be stepped along."""
        if env.batch_locked and not bool(acting.all()):
            raise EnvError(
                f"ConditionalPolicySwitch would step {int(acting.sum())} of the {acting.numel()} rows of "
                f"{type(env.base_env).__name__}, whose rows step together. Switch in each environment of a batch: "
                "SerialEnv(n, lambda: TransformedEnv(make_env(), ConditionalPolicySwitch(...)))"
            )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data stay as they are."""
        return tensordict

    @property
    def supports_rows(self) -> bool:
        """False."""
        return False
