"""Publishing one of our environments as a gymnasium environment, for programs that know gymnasium only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core import EnvBase
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_core.specs import TensorSpec
from rl_envs.gym.library import gymnasium
from rl_envs.gym.spec_to_space import spec_to_space

__all__ = ["PublishedEnv", "register_gym"]


class PublishedEnv(gymnasium.Env):
    """An environment of ours behind gymnasium's interface.

    One observation is given as it is, several as a dict; the same holds for actions.

    Args:
        env: an environment without batch size, with one reward.
        render_mode: None or "rgb_array", which gives the observation "pixels".

    Raises:
        EnvError: the environment has a batch size.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> env = PublishedEnv(CountingEnv(length=2))
        >>> env.reset(seed=0)[0], env.step(env.action_space.sample())[0]
        (array([0.], dtype=float32), array([1.], dtype=float32))
    """

    def __init__(self, env: EnvBase, render_mode: str | None = None) -> None:
        if len(env.batch_size):
            raise EnvError(
                f"{env!r} has the batch size {list(env.batch_size)}; a gymnasium.Env is one environment. Publish one "
                "without a batch size"
            )
        self.env, self.render_mode = env, render_mode
        self.metadata = {"render_modes": [None, "rgb_array"]}
        self.observation_space = spec_to_space(_alone(env.observation_spec, env.observation_keys))
        self.action_space = spec_to_space(_alone(env.full_action_spec, env.action_keys))
        self._td: TensorDictBase | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, and an empty info."""
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
            self.action_space.seed(seed)
        self._td = self.env.reset()
        return self._native(self._td), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; an end that is not a termination is a truncation."""
        if self._td is None:
            raise EnvError("step before reset; start with env.reset()")
        keys = self.env.action_keys
        for key in keys:
            spec = self.env.full_action_spec[key]
            self._td.set(key, spec.encode(action if len(keys) == 1 else _reach(action, key)))
        stepped = self.env.step(self._td)
        self._td = self.env.step_mdp(stepped)
        nxt = stepped.get("next")
        terminated = bool(nxt.get("terminated"))
        return (
            self._native(nxt),
            float(nxt.get(self.env.reward_key)),
            terminated,
            bool(nxt.get("done")) and not terminated,
            {},
        )

    def render(self) -> Any:
        """The observation "pixels", where there is one."""
        if self.render_mode != "rgb_array" or self._td is None:
            return None
        pixels = self._td.get("pixels", None)
        if pixels is None:
            raise EnvError(f"{self.env!r} writes no 'pixels'; make it with from_pixels=True, pixels_only=False")
        return pixels.cpu().numpy()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _native(self, data: TensorDictBase) -> Any:
        keys = self.env.observation_keys
        if len(keys) == 1:
            return _value(self.env.observation_spec[keys[0]], data, keys[0])
        tree: dict[str, Any] = {}
        for key in keys:
            *parents, name = (key,) if isinstance(key, str) else key
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = _value(self.env.observation_spec[key], data, key)
        return tree


def register_gym(
    id: str, make: Callable[..., EnvBase], *, max_episode_steps: int | None = None, **register_kwargs: Any
) -> None:
    """Publish an environment under a gymnasium id.

    Args:
        id: the id, ``"Name-v0"``.
        make: makes the environment; ``gymnasium.make(id, **kwargs)`` passes its keyword arguments on.
        max_episode_steps: gymnasium's time limit.
        **register_kwargs: of ``gymnasium.register``.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> register_gym("Counting-v0", CountingEnv)
        >>> gymnasium.make("Counting-v0", length=3).reset()[0]
        array([0.], dtype=float32)
    """

    def entry(render_mode: str | None = None, **kwargs: Any) -> PublishedEnv:
        return PublishedEnv(make(**kwargs), render_mode)

    gymnasium.register(id=id, entry_point=entry, max_episode_steps=max_episode_steps, **register_kwargs)


def _alone(spec: Any, keys: list[Key]) -> TensorSpec:
    return spec[keys[0]] if len(keys) == 1 else spec


def _value(spec: TensorSpec, data: TensorDictBase, key: Key) -> Any:
    value = data.get(key)
    if not isinstance(value, torch.Tensor):
        return getattr(value, "data", value)
    native = spec.to_numpy(value)
    return native.copy() if hasattr(native, "copy") else native


def _reach(action: Any, key: Key) -> Any:
    for name in (key,) if isinstance(key, str) else key:
        action = action[int(name) if isinstance(action, tuple) else name]
    return action
