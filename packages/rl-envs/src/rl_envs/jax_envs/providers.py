"""The providers ``brax``, ``jumanji`` and ``mujoco_playground``: ``registry.envs.make("brax:ant", num_envs=64)``."""

from __future__ import annotations

from typing import Any

__all__ = ["BraxProvider", "JumanjiProvider", "MujocoPlaygroundProvider"]


class BraxProvider:
    """Makes :class:`rl_envs.jax_envs.brax.BraxEnv`."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build the environment; keyword arguments are those of :class:`rl_envs.jax_envs.brax.BraxEnv`."""
        from rl_envs.jax_envs.brax import BraxEnv

        return BraxEnv(id, **kwargs)

    def ids(self) -> list[str]:
        """Every environment that Brax registers."""
        from rl_envs.jax_envs.brax import brax_names

        return brax_names()

    def describe(self, id: str) -> dict[str, Any]:
        """The specs."""
        return _specs(self.make(id), id)


class JumanjiProvider:
    """Makes :class:`rl_envs.jax_envs.jumanji.JumanjiEnv`."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build the environment; keyword arguments are those of :class:`rl_envs.jax_envs.jumanji.JumanjiEnv`."""
        from rl_envs.jax_envs.jumanji import JumanjiEnv

        return JumanjiEnv(id, **kwargs)

    def ids(self) -> list[str]:
        """Every environment that Jumanji registers."""
        from rl_envs.jax_envs.jumanji import jumanji_module

        return sorted(jumanji_module().registered_environments())

    def describe(self, id: str) -> dict[str, Any]:
        """The specs."""
        return _specs(self.make(id), id)


class MujocoPlaygroundProvider:
    """Makes :class:`rl_envs.jax_envs.playground.MujocoPlaygroundEnv`."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build the environment; keyword arguments: :class:`rl_envs.jax_envs.playground.MujocoPlaygroundEnv`."""
        from rl_envs.jax_envs.playground import MujocoPlaygroundEnv

        return MujocoPlaygroundEnv(id, **kwargs)

    def ids(self) -> list[str]:
        """Every environment of the installed MuJoCo Playground."""
        from rl_envs.jax_envs.playground import playground_registry

        return sorted(playground_registry().ALL_ENVS)

    def describe(self, id: str) -> dict[str, Any]:
        """The specs."""
        return _specs(self.make(id), id)


def _specs(env: Any, id: str) -> dict[str, Any]:
    return {"id": id, "observation spec": str(env.observation_spec), "action spec": str(env.action_spec)}
