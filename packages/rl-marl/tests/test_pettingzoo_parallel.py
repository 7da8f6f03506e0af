"""Parallel games: deaths, agents that come back, mixed endings, masks, and what cannot be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_collectors import Collector
from rl_core import TransformedEnv, checked_mode
from rl_core.errors import EnvError, SpecError
from rl_marl.groups import MarlGroupMapType
from rl_marl.pettingzoo.env import PettingZooWrapper
from rl_marl.testing import ScriptedGame

# Agents a, b, c: b dies at step 2 (reward -1), a and c are cut by the time limit at step 5, then nobody is left.
DEATH = {"x_0": [(0, 5, "truncated")], "x_1": [(0, 2, "terminated")], "x_2": [(0, 5, "truncated")]}


def rows(data, *key):
    """A leaf [T, n, 1] or [T, n] as nested lists of numbers."""
    return data[key].flatten(1).int().tolist()


def play(lives, steps=20, **kwargs):
    env = PettingZooWrapper(ScriptedGame(lives, masked=True), **{"use_mask": True, "done_on_any": False, **kwargs})
    return env.rollout(steps)


def test_an_agent_that_dies_keeps_its_row_until_the_others_end():
    data = play(DEATH)
    assert data.shape == (5,)
    assert rows(data, "x", "mask") == [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 1]]
    assert rows(data, "next", "x", "mask") == [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 1], [0, 0, 0]]
    assert rows(data, "next", "x", "reward") == [[1, 1, 1], [2, -1, 2], [3, 0, 3], [4, 0, 4], [5, 0, 5]]


def test_the_flags_of_the_dead_never_change_and_each_ends_in_its_own_way():
    data = play(DEATH)
    assert rows(data, "next", "x", "terminated") == [[0, 0, 0], *[[0, 1, 0]] * 4]
    assert rows(data, "next", "x", "truncated") == [*[[0, 0, 0]] * 4, [1, 0, 1]]
    assert rows(data, "next", "x", "done") == [[0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0], [1, 1, 1]]


def test_rows_of_the_dead_are_zero_and_their_action_mask_allows_everything():
    data = play(DEATH)
    observed = data["next", "x", "observation"]
    assert observed[1, 1, 0] == 2  # the last observation of the death step itself is the true one
    assert not observed[2:, 1].any() and observed[2:, 0].any()
    assert data["x", "action_mask"][2:, 1].all() and (data["x", "action_mask"][:, 0].sum(-1) == 2).all()


def test_a_mixed_ending_is_not_a_truncation_alone():
    data = play(DEATH)
    assert data["next", "done"].flatten().tolist() == [False] * 4 + [True]
    assert data["next", "terminated"][-1].item() and data["next", "truncated"][-1].item()


def test_both_endings_on_one_step_end_the_episode_in_both_ways():
    data = play({"x_0": [(0, 3, "truncated")], "x_1": [(0, 3, "terminated")]})
    assert data.shape == (3,)
    assert [data["next", name][-1].item() for name in ("done", "terminated", "truncated")] == [True, True, True]
    assert rows(data, "next", "x", "terminated")[-1] == [0, 1] and rows(data, "next", "x", "truncated")[-1] == [1, 0]


@pytest.mark.parametrize(("how", "flags"), [("terminated", (True, False)), ("truncated", (False, True))])
def test_a_pure_ending_is_that_ending_at_the_root(how, flags):
    data = play({"x_0": [(0, 2, how)], "x_1": [(0, 3, how)]})
    assert data.shape == (3,)
    assert (data["next", "terminated"][-1].item(), data["next", "truncated"][-1].item()) == flags


def test_with_done_on_any_the_first_death_ends_the_episode_and_cuts_the_others():
    data = play(DEATH, done_on_any=True)
    assert data.shape == (2,)
    assert data["next", "terminated"][-1].item() and not data["next", "truncated"][-1].item()
    assert rows(data, "next", "x", "terminated")[-1] == [0, 1, 0]
    assert rows(data, "next", "x", "truncated")[-1] == [1, 0, 1]  # their value counts on; their trace stops
    assert rows(data, "next", "x", "mask")[-1] == [0, 0, 0]


def test_parallel_games_end_with_the_first_agent_unless_told_otherwise():
    assert PettingZooWrapper(ScriptedGame(DEATH)).rollout(9).shape == (2,)


def test_the_reset_comes_after_the_last_agent_and_goes_on():
    env = PettingZooWrapper(ScriptedGame(DEATH, masked=True), use_mask=True, done_on_any=False)
    data = env.rollout(12, break_when_any_done=False)
    assert data["next", "done"].flatten().nonzero().flatten().tolist() == [4, 9]
    assert rows(data, "x", "mask")[5] == [1, 1, 1] and not data["x", "done"][5].any()
    assert data["x", "observation"][5, :, 0].tolist() == [0, 0, 0]
    assert data["next", "x", "observation"][4, :, 0].tolist() == [5, 0, 5]


def test_an_agent_joins_late_and_another_comes_back():
    lives = {
        "x_0": [(0, 6, "terminated")],
        "x_1": [(2, 6, "terminated")],
        "x_2": [(0, 2, "terminated"), (4, 6, "truncated")],
    }
    data = play(lives)
    assert data.shape == (6,)
    assert rows(data, "x", "mask") == [[1, 0, 1], [1, 0, 1], [1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert rows(data, "next", "x", "terminated")[1:] == [[0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert rows(data, "next", "x", "reward")[2:4] == [[3, 3, 0], [4, 4, 0]]
    assert rows(data, "next", "x", "truncated")[-1] == [0, 0, 1]
    assert data["next", "x", "observation"][3, 2, 0] == 4  # what it sees when it is back


def test_agents_that_leave_without_a_flag_are_cut_when_nobody_is_left():
    data = play({"x_0": [(0, 2, "gone")], "x_1": [(0, 3, "gone")]})
    assert rows(data, "x", "mask") == [[1, 1], [1, 1], [0, 1]]
    assert rows(data, "next", "x", "done") == [[0, 0], [0, 0], [1, 1]]
    assert rows(data, "next", "x", "truncated")[-1] == [1, 1] and not data["next", "terminated"].any()


def test_the_dead_stay_dead_where_the_game_goes_on_listing_them_without_flags():
    class Keeps(ScriptedGame):
        def step(self, actions):
            results = super().step(actions)
            self.agents = list(self.possible_agents)
            return self._observations(self.agents), *results[1:]

    env = PettingZooWrapper(Keeps(DEATH), use_mask=True, done_on_any=False)
    data = env.rollout(9)
    assert data.shape == (5,)
    assert rows(data, "x", "mask") == [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 1]]
    assert rows(data, "next", "x", "terminated")[1:] == [[0, 1, 0]] * 4
    assert rows(data, "next", "x", "reward")[2:] == [[3, 0, 3], [4, 0, 4], [5, 0, 5]]


def test_an_agent_flagged_in_both_ways_is_both():
    data = play({"x_0": [(0, 2, "both")]})
    assert [data["next", "x", name][-1].item() for name in ("done", "terminated", "truncated")] == [True, True, True]


@pytest.mark.parametrize(
    ("lives", "says"),
    [
        (DEATH, "'x_1' of the group 'x' terminated"),
        ({"x_0": [(0, 2, "gone")], "x_1": [(0, 4, "terminated")]}, "'x_0' of the group 'x' is away"),
        ({"x_0": [(1, 2, "gone")], "x_1": [(0, 4, "terminated")]}, "'x_0' of the group 'x' is away"),
        ({"x_0": [(0, 1, "truncated")], "x_1": [(0, 4, "terminated")]}, "'x_0' of the group 'x' was truncated"),
    ],
)
def test_an_agent_that_leaves_while_nothing_tells_who_acts_is_an_error_with_the_cure(lives, says):
    env = PettingZooWrapper(ScriptedGame(lives), done_on_any=False)
    with pytest.raises(EnvError, match=f"{says}.*use_mask=True"):
        env.rollout(9)


def test_without_a_mask_all_agents_may_end_on_one_step():
    env = PettingZooWrapper(ScriptedGame({"x_0": [(0, 2, "terminated")], "x_1": [(0, 2, "truncated")]}))
    data = env.rollout(9)
    assert data.shape == (2,) and data["x"].get("mask", None) is None


def test_an_action_of_an_absent_agent_is_not_read():
    env = PettingZooWrapper(ScriptedGame(DEATH), use_mask=True, done_on_any=False)
    td = env.reset()
    for t in range(5):
        td["x", "action"] = torch.tensor([0, 2 if t < 2 else -7, 0])
        td = env.step_mdp(env.step(td))
    assert td["done"].item()


def test_random_actions_keep_to_the_masks_also_seen_through_transforms():
    base = PettingZooWrapper(ScriptedGame(DEATH, masked=True), use_mask=True, done_on_any=False)
    env = TransformedEnv(base, lambda td: td)  # the game raises at an illegal action
    data = env.rollout(50, break_when_any_done=False)
    chosen = data["x", "action_mask"].gather(-1, data["x", "action"].unsqueeze(-1))
    assert chosen.all() and len(data) == 50


def test_checked_mode_names_an_action_that_the_mask_of_the_moment_forbids():
    env = PettingZooWrapper(ScriptedGame(DEATH, masked=True), use_mask=True, done_on_any=False)
    td = env.reset()
    td["x", "action"] = (~td["x", "action_mask"]).long().argmax(-1)
    with checked_mode(), pytest.raises(SpecError, match=r"action \('x', 'action'\) is not in its spec"):
        env.step(td)


def test_a_mask_that_forbids_an_actor_everything_is_an_error():
    class Stuck(ScriptedGame):
        def _mask(self, name):
            return np.full(self.choices, self.time < 1, dtype=np.int8)

    with pytest.raises(EnvError, match="'x_0' of the group 'x' must act, but its mask forbids"):
        PettingZooWrapper(Stuck({"x_0": [(0, 4, "terminated")]}, masked=True)).rollout(4)


def test_masks_in_the_infos_are_read_too():
    class Told(ScriptedGame):
        def reset(self, seed=None, options=None):
            observations, _ = super().reset(seed, options)
            return observations, self.tell()

        def step(self, actions):
            return (*super().step(actions)[:4], self.tell())

        def tell(self):
            mask = np.array([0, 1, 0] if self.time % 2 else [0, 0, 1], dtype=np.int8)
            return {name: {"action_mask": mask} for name in self.agents}

    data = PettingZooWrapper(Told({"x_0": [(0, 4, "terminated")]})).rollout(4)
    assert data["x", "action"].flatten().tolist() == [2, 1, 2, 1]


def test_agents_of_other_names_get_groups_by_prefix_and_of_a_map_as_it_says():
    lives = {name: [(0, 3, "terminated")] for name in ("wolf_0", "wolf_1", "dog")}
    assert PettingZooWrapper(ScriptedGame(lives)).group_map == {"wolf": ["wolf_0", "wolf_1"], "dog": ["dog"]}
    env = PettingZooWrapper(ScriptedGame(lives), group_map={"dogs": ["dog", "wolf_1"], "rest": ["wolf_0"]})
    assert env.rollout(3)["dogs", "observation"][0, :, 1].tolist() == [2, 1]  # their places among all agents
    alone = PettingZooWrapper(ScriptedGame(lives), group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT)
    assert alone.rollout(3)["dog", "observation"].shape == (3, 1, 4)
    with pytest.raises(SpecError, match="names the agent 'cat'"):
        PettingZooWrapper(ScriptedGame(lives), group_map={"g": ["cat", "dog", "wolf_0", "wolf_1"]})


def test_an_agent_nobody_knew_of_is_an_error():
    game = ScriptedGame({"x_0": [(0, 3, "terminated")], "x_1": [(1, 3, "terminated")]})
    game.possible_agents = ["x_0"]
    env = PettingZooWrapper(game, use_mask=True)
    game.possible_agents = ["x_0", "x_1"]
    with pytest.raises(EnvError, match="'x_1' appears, which is not among the possible_agents"):
        env.rollout(3)


def test_infos_are_the_numbers_that_all_agents_of_the_group_have():
    data = play(DEATH)
    assert list(data["x", "info"].keys()) == ["age"]
    assert data["next", "x", "info", "age"].squeeze(-1).tolist() == [
        [1, 1, 1],
        [2, 2, 2],
        [3, 0, 3],
        [4, 0, 4],
        [5, 0, 5],
    ]


def test_the_state_stands_at_the_root():
    env = PettingZooWrapper(ScriptedGame(DEATH), return_state=True, use_mask=True, done_on_any=False)
    data = env.rollout(9)
    assert data["state"].tolist() == [[0, 3], [1, 3], [2, 2], [3, 2], [4, 2]]
    assert data["next", "state"][-1].tolist() == [5, 0]


def test_a_seed_repeats_the_episode_and_the_next_one_is_another():
    def episodes(seed):
        env = PettingZooWrapper(ScriptedGame({"x_0": [(0, 1, "terminated")]}))
        env.set_seed(seed)
        return env.rollout(3, break_when_any_done=False)["x", "observation"][:, 0, 3].tolist()

    assert episodes(3) == episodes(3) != episodes(4)
    assert len(set(episodes(3))) == 3
    env = PettingZooWrapper(ScriptedGame({"x_0": [(0, 1, "terminated")]}), seed=3)
    assert env.reset()["x", "observation"][0, 3].item() == episodes(3)[0]


def test_a_partial_reset_is_refused():
    env = PettingZooWrapper(ScriptedGame(DEATH), use_mask=True)
    td = env.reset()
    td["x", "_reset"] = torch.tensor([[True], [False], [True]])
    with pytest.raises(EnvError, match="partial reset"):
        env.reset(td)


def test_keys_are_single_and_nested_where_there_is_one_group():
    env = PettingZooWrapper(ScriptedGame(DEATH), use_mask=True)
    assert (env.action_key, env.reward_key) == (("x", "action"), ("x", "reward"))
    assert set(env.done_keys) == {
        *("done", "terminated", "truncated"),
        *(("x", name) for name in ("done", "terminated", "truncated")),
    }
    assert env.batch_size == () and env.action_spec.shape == (3,)


def test_choices_may_be_one_hot_vectors():
    env = PettingZooWrapper(ScriptedGame(DEATH, masked=True), use_mask=True, categorical_actions=False)
    data = env.rollout(2)
    assert data["x", "action"].shape == (2, 3, 3) and (data["x", "action"].sum(-1) == 1).all()
    assert torch.equal(data["x", "action"][0].int().argmax(-1).float(), data["next", "x", "observation"][0, :, 2])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from(["terminated", "truncated", "gone"])),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_script_flags_agree_and_masks_tell_who_was_there(script, on_any):
    lives = {f"x_{i}": [(first, first + length, how)] for i, (first, length, how) in enumerate(script)}
    lives["x_9"] = [(0, 7, "terminated")]  # somebody is always there
    env = PettingZooWrapper(ScriptedGame(lives), use_mask=True, done_on_any=on_any)
    data = env.rollout(20)
    spans = [life[0] for life in lives.values()]
    for t, row in enumerate(data.unbind(0)):
        present = [first <= t < last for first, last, _ in spans]
        assert row["x", "mask"].tolist() == present
        for part in (row, row["next"]):
            for prefix in ((), ("x",)):
                done, terminated, truncated = (part[(*prefix, name)] for name in ("done", "terminated", "truncated"))
                assert torch.equal(done, terminated | truncated)
        absent = ~row["x", "mask"]
        assert not row["next", "x", "reward"][absent].any()
        dead = (row["x", "done"].squeeze(-1) & absent).tolist()
        if not row["next", "done"].item():
            assert all(row["next", "x", "done"].flatten()[i] for i, is_dead in enumerate(dead) if is_dead)
    flagged = [last for _, last, how in spans if how != "gone"]
    assert len(data) == (min(flagged) if on_any else max(last for _, last, _ in spans))
    assert data["next", "x", "done"][-1].all()


def test_batches_of_a_collector_go_on_from_one_to_the_next():
    env = PettingZooWrapper(ScriptedGame(DEATH, masked=True), use_mask=True, done_on_any=False)
    batches = list(Collector(env, frames_per_batch=4, total_frames=12))
    times = [batch["x", "observation"][:, 0, 0].tolist() for batch in batches]
    assert times == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]]
    assert batches[1]["collector", "traj_ids"].tolist() == [0, 1, 1, 1]
