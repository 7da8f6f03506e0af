"""GroupKit, and the core's EnvKit, on the environments of this package."""

import os

import pytest

from rl_core import check_env_specs
from rl_core.testing import EnvKit, GroupCountingEnv
from rl_core.testing.kit import overrides_check
from rl_marl.groups import MarlGroupMapType
from rl_marl.pettingzoo.env import PettingZooEnv, PettingZooWrapper
from rl_marl.pettingzoo.making import all_ids
from rl_marl.testing import GroupKit, ScriptedGame, ScriptedTurns
from rl_marl.vmas.env import VmasEnv

os.environ["SDL_VIDEODRIVER"] = "dummy"

LIVES = {
    "x_0": [(0, 6, "terminated")],
    "x_1": [(2, 6, "truncated")],
    "x_2": [(0, 2, "terminated"), (4, 6, "truncated")],
    "y_0": [(0, 3, "gone")],
    "y_1": [(0, 5, "both")],
}


class Ours(GroupKit):
    distribution = "rl-marl"


class OurEnvs(EnvKit):
    distribution = "rl-marl"


class Scripted:
    strict = True

    def make_env(self, group_map=None):
        game = ScriptedGame(LIVES, masked=True, strict=self.strict)
        return PettingZooWrapper(game, return_state=True, group_map=group_map, use_mask=True, done_on_any=False)

    make_regrouped = make_env


class TestGroupsOfAScriptedGame(Scripted, Ours):
    pass


class TestAScriptedGame(Scripted, OurEnvs):
    strict = False  # EnvKit draws all actions in advance


class Until(Scripted):
    def make_env(self, group_map=None):
        return PettingZooWrapper(ScriptedGame(LIVES), group_map=group_map, use_mask=True, categorical_actions=False)

    make_regrouped = make_env


class TestGroupsOfAGameThatEndsWithTheFirstAgent(Until, Ours):
    pass


class TestAGameThatEndsWithTheFirstAgent(Until, OurEnvs):
    pass


class Turns:
    strict = True

    def make_env(self, group_map=None):
        game = ScriptedTurns(
            ["a", "b", "c", "d"],
            9,
            rewards={1: {"b": 2}, 3: {"a": -1, "c": 5}, 7: {"d": 1}},
            ends={"b": (3, "terminated"), "c": (4, "truncated")},
            joins={"b": 5, "d": 2},
            masked=True,
            strict=self.strict,
        )
        return PettingZooWrapper(game, group_map={"x": ["a", "b", "c"], "y": ["d"]} if group_map is None else group_map)

    make_regrouped = make_env


class TestGroupsOfAGameInTurns(Turns, Ours):
    pass


class TestAGameInTurns(Turns, OurEnvs):
    strict = False


class TicTacToe:
    random_start = False

    def make_env(self, group_map=None):
        groups = MarlGroupMapType.ALL_IN_ONE_GROUP if group_map is None else group_map
        return PettingZooEnv("classic/tictactoe_v3", group_map=groups)

    make_regrouped = make_env


class TestGroupsOfTicTacToe(TicTacToe, Ours):
    pass


class TestTicTacToe(TicTacToe, OurEnvs):
    pass


class Spread:
    def make_env(self, group_map=None):
        return PettingZooEnv("mpe2/simple_spread_v3", max_cycles=7, return_state=True, group_map=group_map)

    make_regrouped = make_env


class TestGroupsOfSimpleSpread(Spread, Ours):
    pass


class TestSimpleSpread(Spread, OurEnvs):
    pass


class Navigation:
    def make_env(self, group_map=None):
        return VmasEnv("navigation", num_envs=3, max_steps=7, n_agents=3, group_map=group_map)

    make_regrouped = make_env


class TestGroupsOfNavigation(Navigation, Ours):
    pass


class TestNavigation(Navigation, OurEnvs):
    pass


class TestGroupsOfTag(Ours):
    def make_env(self, group_map=None):
        return VmasEnv("simple_tag", num_envs=2, max_steps=5, continuous_actions=False, group_map=group_map)

    make_regrouped = make_env


class TestGroupsOfTheCoresToy(Ours):
    def make_env(self):
        env = GroupCountingEnv([2, 3], batch_size=[3])
        env.group_map = {"agents": ["one", "two"]}
        return env

    @overrides_check(reason="the toy declares its groups with the batch size of the root")
    def test_every_entry_of_a_group_has_the_agent_dimension(self):
        pass


@pytest.mark.parametrize("game", ["butterfly/knights_archers_zombies", "classic/rps"])
def test_further_games_agree_with_their_specs(game):
    task = next(task for task in all_ids() if task.startswith(f"{game}_v"))  # versions differ between releases
    env = PettingZooEnv(task, use_mask=True, done_on_any=False)
    check_env_specs(env)
    data = env.rollout(30, break_when_any_done=False)
    assert data.shape == (30,)
    env.close()
