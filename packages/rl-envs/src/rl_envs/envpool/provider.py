"""The provider ``envpool`` of the registry: ``registry.envs.make("envpool:Pong-v5", num_envs=8)``."""

from __future__ import annotations

from typing import Any

__all__ = ["EnvPoolProvider"]


class EnvPoolProvider:
    """Makes :class:`rl_envs.EnvPoolEnv` by the name of the task."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build the environment; keyword arguments are those of :class:`rl_envs.EnvPoolEnv`."""
        from rl_envs.envpool.env import EnvPoolEnv

        return EnvPoolEnv(id, **kwargs)

    def ids(self) -> list[str]:
        """Every task of the installed EnvPool."""
        from rl_envs.envpool.library import envpool_module

        return sorted(envpool_module().list_all_envs())

    def describe(self, id: str) -> dict[str, Any]:
        """The specs and the options of the pool."""
        from rl_envs.envpool.library import envpool_module

        env = self.make(id)
        return {
            "id": id,
            "observation spec": str(env.observation_spec),
            "action spec": str(env.action_spec),
            "options": dict(envpool_module().make_spec(id).config._asdict()),
        }
