"""The provider ``pettingzoo`` of the registry: ``registry.envs.make("pettingzoo:mpe2/simple_spread_v3")``."""

from __future__ import annotations

from typing import Any

__all__ = ["PettingZooProvider"]


class PettingZooProvider:
    """Makes :class:`rl_marl.PettingZooEnv` by id.

    Example:
        >>> PettingZooProvider().make("classic/tictactoe_v3").group_map
        {'player_1': ['player_1'], 'player_2': ['player_2']}
    """

    def make(self, id: str, **kwargs: Any) -> Any:
        """``PettingZooEnv(id, **kwargs)``: ``parallel``, ``use_mask`` ...; the rest goes to the task's constructor."""
        from rl_marl.pettingzoo.env import PettingZooEnv

        return PettingZooEnv(id, **kwargs)

    def ids(self) -> list[str]:
        """Every id of PettingZoo and mpe2, ``"family/name_vN"``."""
        from rl_marl.pettingzoo.making import all_ids

        return all_ids()

    def describe(self, id: str) -> dict[str, Any]:
        """The groups, the specs and the API; the environment is made and closed for it."""
        from rl_marl.pettingzoo.env import PettingZooEnv

        env = PettingZooEnv(id)
        try:
            return {
                "id": id,
                "api": "parallel" if env.parallel else "turn-based (AEC)",
                "groups": env.group_map,
                "observation spec": str(env.observation_spec),
                "action spec": str(env.full_action_spec),
                "render modes": list(env.simulator.metadata.get("render_modes", [])),
            }
        finally:
            env.close()
