"""The provider ``open_spiel`` of the registry: ``registry.envs.make("open_spiel:tic_tac_toe")``."""

from __future__ import annotations

from typing import Any

__all__ = ["OpenSpielProvider"]


class OpenSpielProvider:
    """Makes :class:`rl_envs.OpenSpielEnv` by the game's name, parameters included."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build the environment; keyword arguments are those of :class:`rl_envs.OpenSpielEnv`."""
        from rl_envs.open_spiel.env import OpenSpielEnv

        return OpenSpielEnv(id, **kwargs)

    def ids(self) -> list[str]:
        """Every game of the installed OpenSpiel."""
        from rl_envs.open_spiel.library import pyspiel_module

        return sorted(pyspiel_module().registered_names())

    def describe(self, id: str) -> dict[str, Any]:
        """The players, the actions and the kind of the game."""
        from rl_core.registry import unknown_id
        from rl_envs.open_spiel.library import pyspiel_module

        if id.partition("(")[0] not in pyspiel_module().registered_names():
            raise unknown_id("open_spiel", id, self.ids())
        game = pyspiel_module().load_game(id)
        kind = game.get_type()
        return {
            "id": id,
            "players": game.num_players(),
            "actions": game.num_distinct_actions(),
            "longest game": game.max_game_length(),
            "dynamics": kind.dynamics.name,
            "information": kind.information.name,
            "chance": kind.chance_mode.name,
        }
