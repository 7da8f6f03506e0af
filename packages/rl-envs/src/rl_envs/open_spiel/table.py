"""One game of OpenSpiel at a time: chance is drawn, the players' turns are told."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Table"]


class Table:
    """A game under way.

    Args:
        game: the game.
        information_state: observe all that a player has seen so far instead of the present.
    """

    def __init__(self, game: Any, information_state: bool) -> None:
        self.game, self.information_state = game, information_state
        self.state: Any = None
        self.player = 0
        self.returns = np.zeros(game.num_players())
        self.generator = np.random.default_rng(0)

    def begin(self, seed: int | None) -> None:
        """Deal a new game; a seed restarts the generator of chance."""
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.state = self.game.new_initial_state()
        self._pass_chance()
        self.returns = np.asarray(self.state.returns())

    def act(self, action: int) -> np.ndarray:
        """The mover's action; what every player won by it, chance included."""
        before = self.returns
        self.state.apply_action(action)
        self._pass_chance()
        self.returns = np.asarray(self.state.returns())
        return self.returns - before

    def _pass_chance(self) -> None:
        state = self.state
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            edge = self.generator.random() * sum(chances)
            place = int(np.searchsorted(np.cumsum(chances), edge, side="right"))
            state.apply_action(outcomes[min(place, len(outcomes) - 1)])
        if not state.is_terminal():
            self.player = state.current_player()

    @property
    def over(self) -> bool:
        """Whether the game has ended."""
        return bool(self.state.is_terminal())

    def observe(self) -> Any:
        """What the player to move sees; after the end, what the last mover sees."""
        if self.information_state:
            return self.state.information_state_tensor(self.player)
        return self.state.observation_tensor(self.player)

    def legal(self) -> Any:
        """The legal actions of the player to move, one flag each; none after the end."""
        return [False] * self.game.num_distinct_actions() if self.over else self.state.legal_actions_mask(self.player)
