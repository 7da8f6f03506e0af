"""``MultiAction``: the policy writes several actions at once, and the environment takes them one after the other."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Composite
from rl_core.envs.base import EnvBase
from rl_core.envs.ends import any_done
from rl_core.errors import EnvError, PolicyError
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.inner_steps import InnerSteps
from rl_envs.transforms.masked_rows import choose, rows_kept

__all__ = ["MultiAction"]


class MultiAction(InnerSteps):
    """Unrolls a chunk of K actions, ``[*B, K, *A]``: one step here is K steps of the environment before it.

    It stops early where episodes end. In a batch, rows that have ended keep their last values (and get no reward) while
    the others go on; once all have ended nothing more is stepped. K may change from step to step.

    Args:
        dim: where K stands among the action's dimensions, batch dimensions counted; default: right after them.
        stack_rewards: rewards are ``[*B, K, 1]``, zero after the end (True), or each row's last one (False).
        stack_observations: observations are ``[*B, K, ...]``, repeated after the end (and ``[*B, 1, ...]`` after a
            reset), instead of the last one.
        action_key: the action that is taken; default: the environment's only one.
        chunk_key: where the policy writes the chunk; default: the action's key.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=2), MultiAction())  # rewards 1, 2
        >>> env.step(env.reset().set("action", torch.zeros(4, 1)))["next", "reward"].flatten()
        tensor([1., 2., 0., 0.])
    """

    def __init__(
        self,
        *,
        dim: int | None = None,
        stack_rewards: bool = True,
        stack_observations: bool = False,
        action_key: Key | None = None,
        chunk_key: Key | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.stack_rewards, self.stack_observations = dim, stack_rewards, stack_observations
        self._action = None if action_key is None else as_key(as_path(action_key))
        self._chunk = None if chunk_key is None else as_key(as_path(chunk_key))
        self._inward: TensorDictBase | None = None
        self._rest: tuple[Tensor, ...] = ()

    # ---------------------------------------------------------------- what the environment says
    def _keys(self, env: EnvBase) -> tuple[Key, Key]:
        action = env.action_key if self._action is None else self._action
        return action, action if self._chunk is None else self._chunk

    def _place(self, env: EnvBase) -> int:
        return len(env.batch_size) if self.dim is None else self.dim

    # ---------------------------------------------------------------- data
    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        env = self.inner_env()
        action, chunk = self._keys(env)
        value = tensordict.get(chunk, None)
        if value is None:
            raise PolicyError(
                f"MultiAction needs the actions {chunk!r}; the policy wrote {list(tensordict.keys(True, True))}"
            )
        place, single = self._place(env), env.full_action_spec[action]
        if value.ndim != single.ndim + 1 or not value.shape[place]:
            raise PolicyError(
                f"MultiAction got {chunk!r} of shape {tuple(value.shape)}; {action!r} has shape {tuple(single.shape)}, "
                f"so the K actions of a chunk stand in dimension {place} of {single.ndim + 1}"
            )
        first, *rest = value.unbind(place)
        if chunk != action:
            tensordict = tensordict.exclude(chunk)
        tensordict.set(action, first)
        self._inward, self._rest = tensordict.copy().exclude("next"), tuple(rest)
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        env = self.inner_env()
        if self._inward is None:
            raise EnvError("MultiAction is stepped through its environment: env.step(td)")
        action = self._keys(env)[0]
        root, result, results = self._inward, next_tensordict, [next_tensordict]
        self._inward = None
        for value in self._rest:
            ended = any_done(result, env.end_groups, result.batch_dims)
            if ended is not None and bool(ended.all()):
                break
            root = env.step_mdp(root.set("next", result)).set(action, value)
            following = env.step(root).get("next")
            if ended is not None:
                following = choose(rows_kept(ended), result, following)
                if self.stack_rewards:
                    for key in env.reward_keys:
                        following.set(key, _zero(following.get(key), ended))
            root.pop("next")
            result = following
            results.append(result)
        return self._stack(env, results, len(self._rest) + 1)

    def _stack(self, env: EnvBase, results: list[TensorDictBase], size: int) -> TensorDictBase:
        result, place = results[-1].copy(), self._place(env)
        absent = size - len(results)
        if self.stack_rewards:
            for key in env.reward_keys:
                values = [one.get(key) for one in results]
                result.set(key, torch.stack([*values, *[torch.zeros_like(values[0])] * absent], place))
        for key in self._stacked_observations(env):
            values = [one.get(key) for one in results]
            result.set(key, torch.stack([*values, *[values[-1]] * absent], place))
        return result

    def _stacked_observations(self, env: EnvBase) -> list[Key]:
        """Observations that a step reads back stay single."""
        if not self.stack_observations:
            return []
        states = set(env.state_keys)
        return [key for key in env.observation_keys if key not in states]

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        env = self.inner_env()
        self._inward = None
        for key in self._stacked_observations(env):
            tensordict_reset.set(key, tensordict_reset.get(key).unsqueeze(self._place(env)))
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data stay as they are."""
        return tensordict

    # ---------------------------------------------------------------- specs
    def _widen(self, spec: Composite, key: Key, out_key: Key) -> None:
        place = self._place(self.inner_env())
        wide = spec[key].unsqueeze(place).make_neg_dim(place)
        if key != out_key:
            spec.pop(key)
        spec.set(out_key, wide)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """A dimension of any size more."""
        action, chunk = self._keys(self.inner_env())
        self._widen(action_spec, action, chunk)
        return action_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The same where rewards are stacked."""
        for key in self.inner_env().reward_keys if self.stack_rewards else ():
            self._widen(reward_spec, key, key)
        return reward_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The same where observations are stacked."""
        for key in self._stacked_observations(self.inner_env()):
            self._widen(observation_spec, key, key)
        return observation_spec


def _zero(reward: Tensor, ended: Tensor) -> Tensor:
    return reward.masked_fill(ended.reshape(*ended.shape, *(1,) * (reward.ndim - ended.ndim)), 0)
