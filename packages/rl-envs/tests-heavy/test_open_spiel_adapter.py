"""OpenSpiel's games against pyspiel itself: turns, masks, chance, rewards of every player."""

import numpy as np
import pyspiel
import pytest
import torch

from rl_core import check_env_specs, registry
from rl_core.errors import CheckpointError, EnvError, UnknownNameError
from rl_core.testing import EnvKit
from rl_envs import OpenSpielEnv, OpenSpielWrapper

GAMES = ["tic_tac_toe", "kuhn_poker", "leduc_poker(players=3)", "connect_four", "pig"]


class Lenient(OpenSpielEnv):
    """Takes a legal action for an illegal one: the kit's walks share actions that know no masks."""

    def _legal(self, table, action):
        legal = table.state.legal_actions()
        return legal[action % len(legal)]


class TestTicTacToe(EnvKit):
    distribution = "rl-envs"
    random_start = False

    def make_env(self):
        return Lenient("tic_tac_toe")


class TestPokers(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return Lenient("leduc_poker", num_envs=3, categorical_action_encoding=True)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("num_envs", [0, 2])
def test_every_turn_is_one_of_the_game(game, num_envs):
    """What a player does not see may be any of several states; each step must agree with at least one of them."""
    env = OpenSpielEnv(game, num_envs=num_envs, categorical_action_encoding=True)
    check_env_specs(env, seed=0)
    env.set_seed(3)
    data = env.rollout(60, break_when_any_done=False)
    raw = pyspiel.load_game(game)
    for row in data if num_envs else data.unsqueeze(0):
        states = []
        for step in row:
            if not states:
                states = list(after_chance(raw.new_initial_state()))
            states = [state for state in states if agrees(state, step, step["current_player"], env.information_state)]
            assert states, "no state of the game explains the observation"
            mover, before = step["current_player"], [np.array(state.returns()) for state in states]
            following = []
            for state, gained in zip(states, before, strict=True):
                for child in after_chance(state.child(step["action"].item())):
                    gains = np.array(child.returns()) - gained
                    if step["next", "reward"].tolist() == pytest.approx(gains.tolist()):
                        following.append(child)
            player = mover if step["next", "done"] else step["next", "current_player"]
            states = [state for state in following if agrees(state, step["next"], player, env.information_state)]
            assert states, "no state of the game explains the turn"
            if step["next", "done"]:
                assert step["next", "terminated"] and not step["next", "truncated"] and states[0].is_terminal()
                states = []


def agrees(state, step, player, information):
    over, number = state.is_terminal(), int(player)
    if over != bool(step["terminated"]) or number != int(step["current_player"]):
        return False
    if not over and state.current_player() != number:
        return False
    seen = state.information_state_tensor(number) if information else state.observation_tensor(number)
    legal = [0] * state.get_game().num_distinct_actions() if over else state.legal_actions_mask(number)
    return np.allclose(seen, step["observation"].flatten()) and legal == step["action_mask"].int().tolist()


def after_chance(state):
    if not state.is_chance_node():
        yield state
        return
    for outcome, _ in state.chance_outcomes():
        yield from after_chance(state.child(outcome))


def test_a_win_is_the_last_movers_and_its_opponents_loss():
    env = OpenSpielEnv("tic_tac_toe", categorical_action_encoding=True)
    td = env.reset()
    for move, player in zip((0, 3, 1, 4, 2), (0, 1, 0, 1, 0), strict=True):
        assert td["current_player"] == player and td["action_mask"][move]
        stepped = env.step(td.set("action", torch.tensor(move)))
        td = env.step_mdp(stepped)
    assert stepped["next", "reward"].tolist() == [1, -1] and stepped["next", "terminated"]
    assert env.state.is_terminal()


def test_chance_follows_its_seed_and_its_probabilities():
    env = OpenSpielEnv("kuhn_poker", num_envs=600, information_state=True)
    env.set_seed(0)
    hands = env.reset()["observation"][:, 2:5].argmax(-1)
    assert (torch.bincount(hands, minlength=3) - 200).abs().max() < 50
    env.set_seed(0)
    assert torch.equal(env.reset()["observation"][:, 2:5].argmax(-1), hands)


def test_an_illegal_action_is_refused():
    env = OpenSpielEnv("tic_tac_toe", categorical_action_encoding=True)
    td = env.step_mdp(env.step(env.reset().set("action", torch.tensor(4))))
    with pytest.raises(EnvError, match=r"action 4 is not legal for player 1 of tic_tac_toe.*action_mask"):
        env.step(td.set("action", torch.tensor(4)))


def test_simultaneous_moves_need_turns():
    with pytest.raises(EnvError, match=r"do not take turns.*turn_based=True"):
        OpenSpielEnv("goofspiel")
    env = OpenSpielEnv("goofspiel(num_cards=4,points_order=descending)", turn_based=True, information_state=True)
    data = env.rollout(40, break_when_any_done=False)
    assert data["current_player"].tolist()[:4] == [0, 1, 0, 1] and data["next", "done"].any()


def test_what_is_observed_can_be_chosen():
    assert OpenSpielEnv("kuhn_poker").observation_spec["observation"].shape == (7,)
    assert OpenSpielEnv("kuhn_poker", information_state=True).observation_spec["observation"].shape == (11,)
    with pytest.raises(EnvError, match=r"no information states as tensors; use information_state=False"):
        OpenSpielEnv("tic_tac_toe", information_state=True)


def test_positions_are_kept_in_checkpoints():
    env, copy = (OpenSpielEnv("leduc_poker", num_envs=2, categorical_action_encoding=True) for _ in range(2))
    td = env.reset()
    for _ in range(2):
        _, td = env.step_and_maybe_reset(env.rand_action(td))
    assert copy.load_state_dict(env.state_dict())
    for _ in range(20):
        td = env.rand_action(td)
        (first, td), (second, _) = env.step_and_maybe_reset(td.clone()), copy.step_and_maybe_reset(td.clone())
        for key in (*env.observation_keys, "reward", "done"):
            assert torch.equal(first["next", key], second["next", key])
    with pytest.raises(CheckpointError, match="holds 2 games"):
        OpenSpielEnv("leduc_poker").load_state_dict(env.state_dict())


def test_names():
    env = registry.envs.make("open_spiel:connect_four", num_envs=2)
    assert env.batch_size == (2,) and "chess" in registry.envs.ids("open_spiel")
    assert registry.envs.describe("open_spiel:connect_four")["players"] == 2
    with pytest.raises(UnknownNameError, match="connect_four"):
        registry.envs.make("open_spiel:conect_four")
    with pytest.raises(TypeError, match=r"pyspiel.Game, got str"):
        OpenSpielWrapper("chess")
