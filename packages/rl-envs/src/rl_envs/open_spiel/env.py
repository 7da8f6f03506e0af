"""``OpenSpielWrapper`` and ``OpenSpielEnv``: OpenSpiel's games, turn by turn, with legal actions as masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rl_core import ArrayEnv, Binary, Categorical, Columns, Composite, OneHot, RowProgram, Unbounded, spawn_seeds
from rl_core.errors import CheckpointError, EnvError
from rl_core.registry import unknown_id
from rl_envs.open_spiel.library import pyspiel_module
from rl_envs.open_spiel.table import Table

__all__ = ["OpenSpielEnv", "OpenSpielWrapper"]


class OpenSpielWrapper(ArrayEnv):
    """A game in which players take turns, as one environment; each step is the turn of "current_player".

    Entries: "observation" float32 ``[*B, ...]``, of the player to move; "action_mask" bool ``[*B, A]``, its legal
    actions; "current_player" int64 ``[*B]``; "action", one-hot or a number; "reward" float32 ``[*B, P]``, what every
    player won by the turn and the chance that followed. After the end nothing is legal, and "next" shows what the last
    mover sees. Chance is drawn from the environment's seed.

    Args:
        game: from ``pyspiel.load_game``.
        num_envs: 0 for one game, else N games as one environment of batch size ``[N]``.
        categorical_action_encoding: write actions as numbers instead of one-hot vectors.
        information_state: observe all that a player has seen since the start (information states) instead of the
            present; None: where the game has no present observations.
        device: where tensors are moved; None leaves them on the CPU.

    Raises:
        EnvError: the players move at the same time, or nothing can be observed as a tensor.

    Lanctot et al., 2019, OpenSpiel: A Framework for Reinforcement Learning in Games, arXiv:1908.09453.
    """

    def __init__(
        self,
        game: Any,
        *,
        num_envs: int = 0,
        categorical_action_encoding: bool = False,
        information_state: bool | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(game, pyspiel_module().Game):
            raise TypeError(f"OpenSpielWrapper takes a pyspiel.Game, got {type(game).__name__}")
        if num_envs < 0:
            raise ValueError(f"num_envs is the number of games, 0 for a single one; got {num_envs}")
        super().__init__(device=device, batch_size=[num_envs] if num_envs else [])
        self.game, self.name = game, game.get_type().short_name
        _refuse_simultaneous(game, self.name)
        self.information_state = _sees_history(game, self.name, information_state)
        self.tables = [Table(game, self.information_state) for _ in range(num_envs or 1)]
        self.running = [False] * len(self.tables)
        self.was_reset = False
        self._seeds: list[int | None] | None = None
        self._declare(categorical_action_encoding)

    def _declare(self, categorical: bool) -> None:
        game, batch = self.game, self.batch_size
        shape = game.information_state_tensor_shape() if self.information_state else game.observation_tensor_shape()
        actions = game.num_distinct_actions()
        self.observation_spec = Composite(
            {
                "observation": Unbounded(shape=(*batch, *shape), dtype=torch.float32),
                "action_mask": Binary(shape=(*batch, actions), dtype=torch.bool),
                "current_player": Categorical(game.num_players(), shape=batch, dtype=torch.int64),
            },
            shape=batch,
        )
        self.categorical_action_encoding = categorical
        self.action_spec = (
            Categorical(actions, shape=batch)
            if categorical
            else OneHot(actions, shape=(*batch, actions), dtype=torch.int64)
        )
        self.reward_spec = Unbounded(shape=(*batch, game.num_players()), dtype=torch.float32)
        flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
        self.done_spec = Composite({name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=batch)

    # ---------------------------------------------------------------- rows
    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the games to columns."""
        count, shape = len(self.tables), (columns.n_steps + 1, len(self.tables))
        observation, mask, player, ended = (
            columns[key].reshape(*shape, -1) for key in ("observation", "action_mask", "current_player", "terminated")
        )
        action, reward = (columns[key].reshape(columns.n_steps, count, -1) for key in ("action", "reward"))
        tables, running, hot = self.tables, self.running, not self.categorical_action_encoding

        def write(t: int, index: int, table: Table) -> None:
            observation[t, index] = table.observe()
            mask[t, index] = table.legal()
            player[t, index] = table.player

        def step(t: int) -> None:
            chosen = (action[t].argmax(-1) if hot else action[t, :, 0]).tolist()
            for index, table in enumerate(tables):
                if not running[index]:
                    self._hold(columns.n_steps)
                    reward[t, index] = 0.0  # the other rows of this column still hold the end of the game
                    continue
                reward[t, index] = table.act(self._legal(table, chosen[index]))
                write(t + 1, index, table)
                ended[t + 1, index] = table.over
                running[index] = not table.over

        def reset(t: int, rows: np.ndarray | None) -> None:
            chosen = range(count) if rows is None else np.flatnonzero(rows).tolist()
            seeds = self._take_seeds(chosen)
            for index in chosen:
                tables[index].begin(seeds[index])
                write(t, index, tables[index])
                running[index] = True

        return RowProgram(step, reset)

    def _legal(self, table: Table, action: int) -> int:
        legal = table.state.legal_actions()
        if action in legal:
            return action
        raise EnvError(
            f"the action {action} is not legal for player {table.player} of {self.name}, which may choose among "
            f"{legal[:20]}; let the policy respect 'action_mask' (MaskedCategorical, env.rand_action)"
        )

    def _hold(self, n_steps: int) -> None:
        if not self.was_reset:
            raise EnvError(f"{self.name} was stepped before its first reset; start with td = env.reset()")
        if n_steps > 1 or not len(self.batch_size):
            raise EnvError(f"{self.name} was stepped after the game ended; reset first: td = env.maybe_reset(td)")

    # ---------------------------------------------------------------- seeds
    def _set_seed(self, seed: int) -> None:
        """The next reset seeds chance; the games of a batch get independent seeds."""
        self._seeds = list(spawn_seeds(seed, len(self.tables))) if len(self.batch_size) else [seed]

    def _take_seeds(self, rows: Sequence[int]) -> list[int | None]:
        if self._seeds is None and not self.was_reset:
            self._set_seed(int(torch.randint(2**31 - 1, ()).item()))
        self.was_reset = True
        taken: list[int | None] = [None] * len(self.tables)
        if self._seeds is not None:
            for row in rows:
                taken[row], self._seeds[row] = self._seeds[row], None
        return taken

    def _reset_options(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - {"seed"})
        if unknown:
            raise TypeError(f"reset of {self.name} takes seed=, not {', '.join(unknown)}")
        if kwargs["seed"] is not None:
            self._set_seed(int(kwargs["seed"]))

    # ---------------------------------------------------------------- states
    @property
    def state(self) -> Any:
        """The ``pyspiel.State`` of a single game; of a batch: ``env.tables[i].state``."""
        if len(self.batch_size):
            raise EnvError(f"{self!r} plays {len(self.tables)} games; take env.tables[i].state")
        return self.tables[0].state

    def state_dict(self) -> dict[str, Any]:
        """The positions as text, with the generators of chance."""
        if not self.was_reset:
            return {}
        return {
            "positions": [table.state.serialize() for table in self.tables],
            "players": [table.player for table in self.tables],
            "generators": [table.generator.bit_generator.state for table in self.tables],
            "running": list(self.running),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        """Go on in the positions of a :meth:`state_dict`.

        Raises:
            CheckpointError: the state is one of another number of games.
        """
        if not state_dict:
            return False
        positions = state_dict["positions"]
        if len(positions) != len(self.tables):
            raise CheckpointError(
                f"the state holds {len(positions)} games, this environment plays {len(self.tables)}; make it with "
                f"num_envs={len(positions)}"
            )
        for index, table in enumerate(self.tables):
            table.state = self.game.deserialize_state(positions[index])
            table.player = state_dict["players"][index]
            table.returns = np.asarray(table.state.returns())
            table.generator.bit_generator.state = state_dict["generators"][index]
        self.running[:] = state_dict["running"]
        self.was_reset = True
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, batch_size={list(self.batch_size)}, device={self.device})"


def _refuse_simultaneous(game: Any, name: str) -> None:
    if game.get_type().dynamics != pyspiel_module().GameType.Dynamics.SEQUENTIAL:
        raise EnvError(
            f"the players of {name} do not take turns; OpenSpielEnv({name!r}, turn_based=True) lets them choose one "
            "after the other, without seeing it (pyspiel.convert_to_turn_based)"
        )


def _sees_history(game: Any, name: str, asked: bool | None) -> bool:
    kind = game.get_type()
    history, present = kind.provides_information_state_tensor, kind.provides_observation_tensor
    chosen = (not present) if asked is None else asked
    if not (history if chosen else present):
        raise EnvError(
            f"{name} gives no {'information states' if chosen else 'observations'} as tensors"
            + (f"; use information_state={not chosen}" if history or present else "")
        )
    return bool(chosen)


class OpenSpielEnv(OpenSpielWrapper):
    """A game by its name, with its parameters if any: "tic_tac_toe", "leduc_poker(players=3)".

    Args:
        game_string: the game.
        turn_based: turn a game of simultaneous moves into one of turns.
        **wrapper_kwargs: as of :class:`OpenSpielWrapper`.

    Raises:
        UnknownNameError: no such game.
        PluginNotInstalledError: OpenSpiel is not installed.
    """

    def __init__(self, game_string: str, *, turn_based: bool = False, **wrapper_kwargs: Any) -> None:
        pyspiel = pyspiel_module()
        known = pyspiel.registered_names()
        if game_string.partition("(")[0] not in known:
            raise unknown_id("open_spiel", game_string, known)
        load = pyspiel.load_game_as_turn_based if turn_based else pyspiel.load_game
        super().__init__(load(game_string), **wrapper_kwargs)
