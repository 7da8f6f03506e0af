"""``BraxWrapper`` and ``BraxEnv``: Brax's environments, and others of its interface such as MuJoCo Playground's."""

from __future__ import annotations

from typing import Any

import torch

from rl_core import Bounded, TensorSpec, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key
from rl_core.registry import missing_extra, unknown_id
from rl_envs.jax_envs.env import JaxEnv, Outcome, by_path
from rl_envs.jax_envs.library import jax, jnp

__all__ = ["BraxEnv", "BraxWrapper"]


class BraxWrapper(JaxEnv):
    """An environment of Brax's interface, without wrappers that batch or reset.

    It has ``reset(key) -> state`` and ``step(state, action) -> state``; a state holds ``obs``, ``reward`` and ``done``.

    Args:
        env: the environment, of one row.
        episode_length: steps after which an episode is cut (truncated); None: never.
        frame_skip: steps per step, on which the action is repeated and the rewards are summed.
        num_envs: as in :class:`JaxEnv`.
        jit: as in :class:`JaxEnv`.
        device: as in :class:`JaxEnv`.

    Freeman et al., 2021, Brax: A Differentiable Physics Engine for Large Scale Rigid Body Simulation, arXiv:2106.13281.
    """

    def __init__(
        self,
        env: Any,
        *,
        episode_length: int | None = 1000,
        frame_skip: int = 1,
        num_envs: int = 0,
        jit: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        if frame_skip < 1:
            raise ValueError(f"frame_skip is the number of steps per step, at least 1; got {frame_skip}")
        self._env, self.episode_length, self.frame_skip = env, episode_length, frame_skip
        super().__init__(num_envs=num_envs, jit=jit, device=device)
        self.name = type(getattr(env, "unwrapped", env)).__name__
        shapes = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
        observations: dict[Key, TensorSpec] = {
            as_key(path or ("observation",)): Unbounded(shape=leaf.shape, dtype=torch.float32)
            for path, leaf in by_path(shapes.obs)
        }
        action = Bounded(low=-1.0, high=1.0, shape=(int(env.action_size),), dtype=torch.float32)
        self.declare(observations, action)

    def begin(self, key: Any) -> Outcome:
        """A first observation."""
        state = self._env.reset(key)
        never = jnp.zeros((), bool)
        return Outcome((state, jnp.zeros((), jnp.int32)), state.obs, state.reward, never, never)

    def advance(self, state: Any, action: Any) -> Outcome:
        """One step of ``frame_skip`` frames; those after an end count nothing."""
        inner, count = state
        reward = jnp.zeros_like(inner.reward)
        over = jnp.zeros((), bool)
        for _ in range(self.frame_skip):
            following = self._env.step(inner, action)
            inner = jax.tree_util.tree_map(lambda new, old: jnp.where(over, old, new), following, inner)  # noqa: B023
            reward = reward + jnp.where(over, 0.0, following.reward)
            over = over | (inner.done > 0)
        count = count + 1
        cut = jnp.zeros((), bool) if self.episode_length is None else count * self.frame_skip >= self.episode_length
        return Outcome((inner, count), inner.obs, reward, over, cut & ~over)


class BraxEnv(BraxWrapper):
    """One of Brax's environments by its name.

    Args:
        env_name: the name, for example "ant".
        backend: the physics: "generalized", "positional", "spring" or "mjx"; None: the environment's own.
        env_kwargs: for the environment.
        **wrapper_kwargs: as of :class:`BraxWrapper`.

    Raises:
        UnknownNameError: no such environment.
        PluginNotInstalledError: Brax is not installed.
    """

    def __init__(
        self,
        env_name: str,
        *,
        backend: str | None = None,
        env_kwargs: dict[str, Any] | None = None,
        **wrapper_kwargs: Any,
    ) -> None:
        envs = brax_envs()
        known = brax_names()
        if env_name not in known:
            raise unknown_id("brax", env_name, known)
        kwargs = {**(env_kwargs or {}), **({} if backend is None else {"backend": backend})}
        if "auto_reset" in kwargs or "batch_size" in kwargs:
            raise EnvError("rows are batched and reset here: say num_envs=N, leave auto_reset and batch_size out")
        super().__init__(envs.get_environment(env_name, **kwargs), **wrapper_kwargs)
        self.name = env_name


def brax_envs() -> Any:
    """Brax's module of environments.

    Raises:
        PluginNotInstalledError: Brax is not installed.
    """
    try:
        from brax import envs
    except ModuleNotFoundError as error:
        if error.name != "brax":
            raise
        raise missing_extra("brax", "rl-envs", "brax") from error
    return envs


def brax_names() -> list[str]:
    """The environments that Brax registers."""
    return sorted(brax_envs()._envs)
