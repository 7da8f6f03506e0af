"""The provider ``vmas`` of the registry: ``registry.envs.make("vmas:navigation", num_envs=64)``."""

from __future__ import annotations

from typing import Any

__all__ = ["VmasProvider"]


class VmasProvider:
    """Makes :class:`rl_marl.VmasEnv` by the name of its scenario.

    Example:
        >>> VmasProvider().make("navigation", num_envs=2).batch_size
        torch.Size([2])
    """

    def make(self, id: str, **kwargs: Any) -> Any:
        """``VmasEnv(id, **kwargs)``; ``num_envs`` is needed."""
        from rl_marl.vmas.env import VmasEnv

        return VmasEnv(id, **kwargs)

    def ids(self) -> list[str]:
        """Every scenario that VMAS brings along."""
        from rl_marl.vmas.env import all_scenarios

        return all_scenarios()

    def describe(self, id: str) -> dict[str, Any]:
        """The groups and the specs of one environment of the scenario; it is made for it."""
        from rl_marl.vmas.env import VmasEnv

        env = VmasEnv(id, num_envs=1)
        return {
            "id": id,
            "groups": env.group_map,
            "observation spec": str(env.observation_spec_unbatched),
            "action spec": str(env.full_action_spec_unbatched),
        }
