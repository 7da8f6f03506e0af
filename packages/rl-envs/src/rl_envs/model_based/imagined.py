"""``ImaginedEnv``: an environment whose observations come from a learned model of the next observation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Composite, ModelBasedEnvBase
from rl_core.envs.base import EnvBase
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path, join

__all__ = ["ImaginedEnv"]


class ImaginedEnv(ModelBasedEnvBase):
    """A real environment with its dynamics replaced by a model; first observations are still its own.

    Args:
        world_model_module: reads the observation and the action, writes the next observation, and the reward
            (("next", "reward") or "reward") unless reward_fn is given. If it writes ("next", "terminated"), episodes
            end there.
        base_env: gives specs and first observations.
        batch_size: how many are imagined together, unless a reset says otherwise.
        next_observation_key: where the model writes the next observation; its name without "next" is the observation.
        reward_fn: the reward [*B, 1] as a function of observation, action and next observation.

    Raises:
        EnvError: the environment has no such observation.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> from tensordict.nn import TensorDictModule
        >>> model = TensorDictModule(lambda o, a: o + a, ["observation", "action"], [("next", "observation")])
        >>> env = ImaginedEnv(model, CountingEnv(), batch_size=[3], reward_fn=lambda o, a, n: -n.abs())
        >>> env.rollout(4).batch_size
        torch.Size([3, 4])
    """

    def __init__(
        self,
        world_model_module: Callable[[TensorDictBase], TensorDictBase],
        base_env: EnvBase,
        batch_size: int | Sequence[int] | torch.Size | None = None,
        next_observation_key: Key = ("next", "observation"),
        *,
        reward_fn: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        size = [batch_size] if isinstance(batch_size, int) else batch_size
        super().__init__(world_model_module, device=device or base_env.device, batch_size=())
        path = as_path(next_observation_key)
        self.next_observation_key = as_key(path)
        self.observation_key: Key = as_key(path[1:] if path[0] == "next" and len(path) > 1 else path)
        if self.observation_key not in base_env.observation_keys:
            raise EnvError(
                f"ImaginedEnv imagines {self.observation_key!r}; the environment has {base_env.observation_keys}. Say "
                "which with next_observation_key=('next', ...)"
            )
        self.real_env = base_env
        self.reward_fn = reward_fn
        self.imagined_size = torch.Size(size or ())
        self.set_specs_from_env(base_env)
        spec = self.observation_spec[self.observation_key]
        self.observation_spec = Composite({self.observation_key: spec})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        batch = self.imagined_size if tensordict is None or not tensordict.batch_dims else tensordict.batch_size
        first = self._real_observations(batch.numel()).reshape(*batch, *self._shape())
        return TensorDict({self.observation_key: first}, batch_size=batch, device=self.device)

    def _real_observations(self, count: int) -> Tensor:
        """So many first observations of the real environment [count, ...]."""
        if not self.real_env.batch_locked:
            request = TensorDict({}, batch_size=[count], device=self.real_env.device)
            fresh: Tensor = self.real_env.reset(request).get(self.observation_key)
            return fresh
        rows: list[Tensor] = []
        while sum(part.shape[0] for part in rows) < count or not rows:
            rows.append(self.real_env.reset().get(self.observation_key).reshape(-1, *self._shape()))
        return torch.cat(rows)[:count].clone()

    def _shape(self) -> torch.Size:
        return self.observation_spec[self.observation_key].shape

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = self.world_model(tensordict.copy().exclude("next"))
        if not isinstance(result, TensorDictBase):
            raise EnvError(f"the world model returned {type(result).__name__}; it must return a TensorDict")
        observation = result.get(self.next_observation_key, None)
        if observation is None:
            raise EnvError(
                f"the world model wrote no {self.next_observation_key!r}; it wrote {list(result.keys(True))}"
            )
        step = TensorDict({}, batch_size=tensordict.batch_size, device=tensordict.device)
        step.set(self.observation_key, observation)
        (reward_key,) = self.reward_keys
        step.set(reward_key, self._reward(tensordict, result, observation, reward_key))
        for key in self.done_keys:
            flag = result.get(join("next", key), None)
            if flag is not None:
                step.set(key, flag)
        return step

    def _reward(self, before: TensorDictBase, result: TensorDictBase, observation: Tensor, key: Key) -> Tensor:
        if self.reward_fn is not None:
            (action_key,) = self.action_keys
            return self.reward_fn(before.get(self.observation_key), before.get(action_key), observation)
        for where in (join("next", key), key):
            reward = result.get(where, None)
            if reward is not None and reward is not before.get(where, None):
                return reward
        raise EnvError(
            f"the world model wrote no reward {key!r}: let it, or give ImaginedEnv(..., reward_fn=...) the reward as a "
            "function of observation, action and next observation"
        )
