"""PettingZoo tasks by id, through the registry, and the spaces they bring."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from rl_collectors import Collector
from rl_core import Binary, Bounded, Categorical, MultiCategorical, Unbounded, check_env_specs, registry
from rl_core.errors import EnvError, SpecError, UnknownNameError
from rl_marl.pettingzoo.env import PettingZooEnv, PettingZooWrapper
from rl_marl.pettingzoo.library import gymnasium
from rl_marl.pettingzoo.provider import PettingZooProvider
from rl_marl.testing import ScriptedGame

os.environ["SDL_VIDEODRIVER"] = "dummy"  # frames are drawn without a screen
spaces = gymnasium.spaces


def test_simple_spread_has_one_group_of_three_and_a_state():
    env = PettingZooEnv("mpe2/simple_spread_v3", return_state=True, max_cycles=4)
    data = env.rollout(9)
    assert env.parallel and env.group_map == {"agent": ["agent_0", "agent_1", "agent_2"]}
    assert data.shape == (4,) and data["agent", "observation"].shape == (4, 3, 18) and data["state"].shape == (4, 54)
    assert data["next", "truncated"][-1].item() and not data["next", "terminated"].any()
    assert data["agent"].batch_size == (4, 3)


def test_rows_are_what_the_game_itself_gives():
    from mpe2 import simple_spread_v3

    env = PettingZooEnv("mpe/simple_spread_v3", seed=4)
    torch.manual_seed(0)
    data = env.rollout(10)
    game = simple_spread_v3.parallel_env()
    observations, _ = game.reset(seed=4)
    for t in range(10):
        for i, name in enumerate(game.possible_agents):
            assert data["agent", "observation"][t, i].tolist() == observations[name].tolist()
        actions = {name: data["agent", "action"][t, i].item() for i, name in enumerate(game.possible_agents)}
        observations, rewards, *_ = game.step(actions)
        wanted = torch.tensor([rewards[name] for name in game.possible_agents], dtype=torch.float32)
        assert torch.equal(data["next", "agent", "reward"][t].squeeze(-1), wanted)


def test_groups_of_other_shapes_lie_side_by_side():
    env = PettingZooEnv("mpe2/simple_speaker_listener_v4")
    data = env.rollout(3)
    assert data["speaker", "observation"].shape == (3, 1, 3) and data["listener", "observation"].shape == (3, 1, 11)
    assert env.full_action_spec["speaker", "action"].n == 3 and env.full_action_spec["listener", "action"].n == 5
    check_env_specs(env)


def test_agents_of_other_shapes_in_one_group_are_an_error_that_names_them():
    with pytest.raises(SpecError, match=r"group 'g' differ in their action space: 'speaker_0'.*'listener_0'"):
        PettingZooEnv("mpe2/simple_speaker_listener_v4", group_map={"g": ["speaker_0", "listener_0"]})
    with pytest.raises(SpecError, match=r"group 'agents' differ in their observation space: 'adversary_0'.*'agent_0'"):
        PettingZooEnv("mpe2/simple_push_v3", group_map={"agents": ["adversary_0", "agent_0"]})


@pytest.mark.parametrize("parallel", [None, True])
def test_the_parallel_api_is_taken_where_there_is_one(parallel):
    assert PettingZooEnv("mpe2/simple_v3", parallel=parallel).parallel


def test_the_turn_based_api_is_taken_where_asked_for_and_where_it_is_the_only_one():
    assert not PettingZooEnv("mpe2/simple_v3", parallel=False).parallel
    assert not PettingZooEnv("classic/connect_four_v3").parallel
    with pytest.raises(EnvError, match="no 'parallel_env'; pass parallel=False"):
        PettingZooEnv("classic/connect_four_v3", parallel=True)


def test_both_apis_of_a_game_earn_the_same():
    parallel = PettingZooEnv("mpe2/simple_spread_v3", seed=1, max_cycles=3)
    turns = PettingZooEnv("mpe2/simple_spread_v3", parallel=False, seed=1, max_cycles=3)

    def still(td):
        for group in [key for key in list(td.keys()) if key.startswith("agent")]:
            td.set((group, "action"), torch.zeros(td[group].batch_size, dtype=torch.int64))
        return td

    together, one_by_one = parallel.rollout(3, still), turns.credit_turns(turns.rollout(9, still))
    for i in range(3):
        rows = one_by_one["next", f"agent_{i}", "reward"][one_by_one[f"agent_{i}", "mask"]]
        assert torch.allclose(rows.flatten(), together["next", "agent", "reward"][:, i].flatten())


def test_frames_stay_bytes_and_forces_stay_in_their_bounds():
    env = PettingZooEnv("butterfly/pistonball_v6", n_pistons=4)
    data = env.rollout(2)
    assert data["piston", "observation"].dtype == torch.uint8 and data["piston", "observation"].shape[:2] == (2, 4)
    assert data["piston", "action"].shape == (2, 4, 1) and data["piston", "action"].abs().max() <= 1
    env.close()


def test_a_bare_name_and_a_modules_path_are_found():
    assert PettingZooEnv("simple_v3").group_map == {"agent": ["agent_0"]}
    assert PettingZooEnv("mpe2.simple_v3").group_map == {"agent": ["agent_0"]}


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("classic/tictactoe_v2", "no task 'classic/tictactoe_v2'.*classic/tictactoe_v3"),
        ("clasic/tictactoe_v3", "no family 'clasic' .did you mean 'classic'"),
        ("tictactoe", "no task 'tictactoe'"),
        ("no_such.module", "no module 'no_such.module'"),
    ],
)
def test_unknown_tasks_are_answered_with_close_ones(task, says):
    with pytest.raises(UnknownNameError, match=says):
        PettingZooEnv(task)


def test_a_task_whose_package_is_absent_names_the_pip_command():
    script = (
        "import sys; sys.modules['multi_agent_ale_py'] = None\n"
        "from rl_core.errors import PluginNotInstalledError\n"
        "from rl_marl.pettingzoo.env import PettingZooEnv\n"
        "try:\n    PettingZooEnv('atari/pong_v3')\n"
        "except PluginNotInstalledError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pip install 'pettingzoo[atari]'" in said


def test_without_pettingzoo_the_pip_command_is_named():
    script = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "from rl_core.errors import PluginNotInstalledError\n"
        "try:\n    import rl_marl.pettingzoo.env\n"
        "except PluginNotInstalledError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pip install 'rl-marl[pettingzoo]'" in said


def test_the_provider_makes_lists_and_describes():
    provider = PettingZooProvider()
    ids = provider.ids()
    assert {"mpe2/simple_spread_v3", "butterfly/pistonball_v6", "classic/tictactoe_v3"} <= set(ids)
    assert not any(name.startswith("mpe/") for name in ids)
    facts = provider.describe("classic/tictactoe_v3")
    assert facts["api"].startswith("turn") and facts["groups"] == {"player_1": ["player_1"], "player_2": ["player_2"]}
    with registry.isolated():
        registry.envs.register("zoo", PettingZooProvider())
        env = registry.envs.make("zoo:mpe2/simple_v3", max_cycles=2)
    assert env.rollout(9).shape == (2,)


def test_what_is_no_pettingzoo_environment_is_refused():
    with pytest.raises(TypeError, match="ParallelEnv or AECEnv, got int"):
        PettingZooWrapper(3)
    with pytest.raises(EnvError, match="possible_agents"):
        game = ScriptedGame({"x_0": [(0, 2, "terminated")]})
        game.possible_agents = []
        PettingZooWrapper(game)


def test_a_state_that_the_game_does_not_have_is_an_error():
    with pytest.raises(EnvError, match=r"return_state=True needs env.state\(\)"):
        PettingZooEnv("classic/tictactoe_v3", return_state=True)


class Spacious(ScriptedGame):
    """A game of given spaces; observations are drawn from them, actions are kept."""

    def __init__(self, observation, action, lives=None):
        super().__init__(lives or {"x_0": [(0, 3, "terminated")], "x_1": [(0, 2, "terminated")]}, choices=9)
        self._observed, self._chosen = observation, action
        self.seen = []

    def step(self, actions):
        self.seen.append(dict(actions))
        assert all(self._chosen.contains(action) for action in actions.values())
        return super().step(dict.fromkeys(actions, 0))

    def _observations(self, names):
        return {name: self._observed.sample() for name in names}


@pytest.mark.parametrize(
    ("space", "kind", "shape"),
    [
        (spaces.Box(1.0, 2.0, (3,), np.float64), Bounded, (2, 3)),
        (spaces.Box(-np.inf, np.inf, (3,), np.float32), Unbounded, (2, 3)),
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), Bounded, (2, 4, 5, 3)),
        (spaces.Box(np.zeros(6, bool), np.ones(6, bool), (6,), bool), Binary, (2, 6)),
        (spaces.Discrete(4, start=2), Categorical, (2,)),
        (spaces.MultiDiscrete([3, 4], start=[1, 0]), Bounded, (2, 2)),
        (spaces.MultiBinary(5), Binary, (2, 5)),
    ],
)
def test_observations_of_every_array_space_are_in_their_specs_zeros_of_the_dead_too(space, kind, shape):
    env = PettingZooWrapper(Spacious(space, spaces.Discrete(9)), use_mask=True, done_on_any=False)
    spec = env.observation_spec["x", "observation"]
    assert isinstance(spec, kind) and tuple(spec.shape) == shape
    check_env_specs(env)
    data = env.rollout(3)
    assert data.shape == (3,) and not data["next", "x", "observation"][2, 1].any()
    assert spec.is_in(data["next", "x", "observation"][2])


def test_observations_of_dicts_and_tuples_keep_their_places():
    space = spaces.Dict(
        {"eye": spaces.Box(0, 1, (2,)), "hands": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
    )
    env = PettingZooWrapper(Spacious(space, spaces.Discrete(9)), use_mask=True)
    data = env.rollout(2)
    assert data["x", "observation", "eye"].shape == (2, 2, 2)
    assert data["x", "observation", "hands", "1"].shape == (2, 2, 2)
    check_env_specs(env)


def test_a_space_without_an_array_form_is_an_error():
    with pytest.raises(SpecError, match="Text"):
        PettingZooWrapper(Spacious(spaces.Text(3), spaces.Discrete(9)))
    with pytest.raises(SpecError, match="Text"):
        PettingZooWrapper(Spacious(spaces.MultiBinary(2), spaces.Text(3)))


@pytest.mark.parametrize(
    ("space", "categorical"),
    [
        (spaces.Box(-2.0, 3.0, (2,), np.float32), True),
        (spaces.Discrete(4, start=3), True),
        (spaces.Discrete(4, start=3), False),
        (spaces.MultiDiscrete([3, 4], start=[1, 0]), True),
        (spaces.MultiDiscrete([3, 4], start=[1, 0]), False),
        (spaces.MultiBinary(5), True),
    ],
)
def test_actions_reach_the_game_as_members_of_its_space(space, categorical):
    game = Spacious(spaces.MultiBinary(2), space)
    env = PettingZooWrapper(game, use_mask=True, done_on_any=False, categorical_actions=categorical)
    env.rollout(30, break_when_any_done=False)  # the game checks each one
    assert [sorted(actions) for actions in game.seen[:3]] == [["x_0", "x_1"], ["x_0", "x_1"], ["x_0"]]


def test_choices_side_by_side_are_read_from_their_one_hot_vectors():
    game = Spacious(spaces.MultiBinary(2), spaces.MultiDiscrete([3, 4], start=[1, 0]))
    env = PettingZooWrapper(game, categorical_actions=False)
    td = env.reset()
    hot = [[0, 0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0, 1]]
    env.step(td.set(("x", "action"), torch.tensor(hot, dtype=torch.bool)))
    assert {name: action.tolist() for name, action in game.seen[-1].items()} == {"x_0": [3, 1], "x_1": [1, 3]}
    plain = PettingZooWrapper(Spacious(spaces.MultiBinary(2), spaces.MultiDiscrete([3, 4])))
    assert isinstance(plain.action_spec, MultiCategorical) and plain.action_spec.shape == (2, 2)


def test_the_seed_of_torch_reproduces_a_run():
    def run():
        torch.manual_seed(11)
        return PettingZooEnv("mpe2/simple_spread_v3").rollout(5)

    assert (run() == run()).all()


def test_a_collector_over_a_task_gives_whole_batches():
    env = PettingZooEnv("mpe2/simple_spread_v3", max_cycles=5)
    batches = list(Collector(env, frames_per_batch=8, total_frames=16))
    assert [batch.shape for batch in batches] == [(8,), (8,)]
    done = torch.cat([batch["next", "done"] for batch in batches]).flatten()
    assert done.nonzero().flatten().tolist() == [4, 9, 14]
    assert all(batch["next", "agent", "truncated"].shape == (8, 3, 1) for batch in batches)


def test_a_closed_environment_says_so():
    env = PettingZooEnv("mpe2/simple_v3")
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.reset()
