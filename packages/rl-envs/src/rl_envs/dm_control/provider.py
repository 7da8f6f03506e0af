"""The provider ``dm_control`` of the registry: ``registry.envs.make("dm_control:cheetah-run")``."""

from __future__ import annotations

from typing import Any

__all__ = ["DMControlProvider"]


class DMControlProvider:
    """Makes :class:`rl_envs.DMControlEnv`; an id is the domain and the task with a hyphen between them."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build the environment; keyword arguments are those of :class:`rl_envs.DMControlEnv`."""
        from rl_envs.dm_control.env import DMControlEnv

        domain, _, task = id.partition("-")
        return DMControlEnv(domain, task, **kwargs)

    def ids(self) -> list[str]:
        """Every task of the suite."""
        from rl_envs.dm_control.library import suite

        return ["-".join(names) for names in suite.ALL_TASKS]

    def describe(self, id: str) -> dict[str, Any]:
        """The specs and the length of an episode; the environment is made and closed for it."""
        env = self.make(id)
        try:
            return {
                "id": id,
                "observation spec": str(env.observation_spec),
                "action spec": str(env.action_spec),
                "seconds per step": env.control_timestep(),
            }
        finally:
            env.close()
