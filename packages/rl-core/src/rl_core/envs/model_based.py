"""``ModelBasedEnvBase``: an environment whose dynamics are a learned (or given) world model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_core.envs.base import EnvBase
from rl_core.errors import EnvError

__all__ = ["ModelBasedEnvBase"]


class ModelBasedEnvBase(EnvBase):
    """Steps a world model: a module that reads state and action and writes the next observation, reward and end flags.

    It is stateless (``batch_locked`` is False): the state travels in the TensorDict, and any batch size may be imagined
    at once. A subclass defines ``_reset``, which gives the states that imagination starts from. Specs are taken from
    the real environment by :meth:`set_specs_from_env`. Gradients flow through ``step``.

    Args:
        world_model: a function of a TensorDict that writes what the specs declare; usually a TensorDict module.
        device: where its tensors live.
        batch_size: the prefix of every shape.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> from tensordict import TensorDict
        >>> class Imagined(ModelBasedEnvBase):
        ...     def _reset(self, tensordict=None):
        ...         return TensorDict({"observation": torch.zeros(1)})
        >>> def model(td):
        ...     return td.set("observation", td["observation"] + td["action"]).set("reward", -td["observation"].abs())
        >>> env = Imagined(model)
        >>> env.set_specs_from_env(CountingEnv())
        >>> env.rollout(4).batch_size
        torch.Size([4])
    """

    batch_locked = False

    def __init__(
        self,
        world_model: Callable[[TensorDictBase], TensorDictBase],
        *,
        device: torch.device | str | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(device=device, batch_size=batch_size, **kwargs)
        self.world_model = world_model

    def set_specs_from_env(self, env: EnvBase) -> None:
        """Take over the specs of the environment that the model imitates."""
        for kind in ("observation", "state", "action", "reward", "done"):
            spec = env._spec(kind)
            dims = len(env.batch_size)
            self._set_spec(kind, spec[(0,) * dims] if dims else spec, kind)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = self.world_model(tensordict.copy().exclude("next"))
        if not isinstance(result, TensorDictBase):
            raise EnvError(f"the world model returned {type(result).__name__}; it must return a TensorDict")
        written = [*self.observation_keys, *self.reward_keys, *self.done_keys, *self.state_keys]
        if not any(result.get(key, None) is not None for key in self.reward_keys):
            raise EnvError(f"the world model wrote none of the rewards {self.reward_keys}; they are for it to predict")
        ends = {key for key in self.done_keys if tensordict.get(key, None) is result.get(key, None)}
        return result.select(*[key for key in written if key not in ends], strict=False)

    def train(self, mode: bool = True) -> ModelBasedEnvBase:
        """Set the world model's mode as well."""
        super().train(mode)
        if isinstance(self.world_model, nn.Module):
            self.world_model.train(mode)
        return self
