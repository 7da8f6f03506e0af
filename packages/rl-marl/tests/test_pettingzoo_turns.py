"""Turn-based games: who acts, the dead without anybody's help, and every reward to the action that earned it."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl_collectors import Collector
from rl_core import TransformedEnv
from rl_core.errors import EnvError, KeyMissingError
from rl_marl.groups import MarlGroupMapType
from rl_marl.pettingzoo.credit import credit_turns
from rl_marl.pettingzoo.env import PettingZooEnv, PettingZooWrapper
from rl_marl.testing import ScriptedGame, ScriptedTurns


def column(data, group, *key):
    return data[(*key[:-1], group, key[-1])].flatten().int().tolist()


def first_allowed(td, groups):
    """Every agent's smallest allowed action."""
    for group in groups:
        mask = td.get((group, "action_mask"), None)
        shape = td.get((group, "mask")).shape
        td.set((group, "action"), torch.zeros(shape, dtype=torch.int64) if mask is None else mask.int().argmax(-1))
    return td


def own_trajectories(game, seed, length=100):
    """The plain loop of PettingZoo: agent -> its transitions (observation, reward, next observation, term, trunc)."""
    game.reset(seed=seed)
    found, waiting = {name: [] for name in game.possible_agents}, {}
    for name in game.agent_iter(length):
        seen, reward, terminated, truncated, _ = game.last()
        mask = seen["action_mask"] if isinstance(seen, dict) else None
        seen = seen["observation"] if isinstance(seen, dict) else seen
        if name in waiting:
            found[name].append((waiting.pop(name).tolist(), reward, seen.tolist(), terminated, truncated))
        if terminated or truncated:
            game.step(None)
        else:
            waiting[name] = seen
            game.step(0 if mask is None else int(mask.argmax()))
    return found


def own_rows(data, group, i=0):
    """The same from a batch: the rows in which the agent acts."""
    acts = data[group, "mask"][:, i]
    nxt = data["next", group]
    return [
        (
            data[group, "observation"][t, i].tolist(),
            nxt["reward"][t, i].item(),
            nxt["observation"][t, i].tolist(),
            nxt["terminated"][t, i].item(),
            nxt["truncated"][t, i].item(),
        )
        for t in acts.nonzero().flatten().tolist()
    ]


def test_the_agent_in_turn_acts_and_nobody_else():
    data = PettingZooWrapper(ScriptedTurns(["a", "b", "c"], length=5)).rollout(9)
    assert [column(data, group, "mask") for group in "abc"] == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0]]
    assert [column(data, group, "next", "mask") for group in "abc"] == [
        [0, 0, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 1, 0, 0, 0],
    ]
    assert data["next", "done"].flatten().tolist() == [False] * 4 + [True]


def test_each_agent_has_a_group_unless_a_map_says_otherwise():
    game = ScriptedTurns(["a_0", "a_1"], length=4)
    assert PettingZooWrapper(game).group_map == {"a_0": ["a_0"], "a_1": ["a_1"]}
    data = PettingZooWrapper(game, group_map=MarlGroupMapType.ALL_IN_ONE_GROUP).rollout(4)
    assert data["agents", "mask"].int().tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_the_step_of_a_dead_agent_is_taken_without_an_action():
    # b dies in its own move 2 with -1; a and c are cut after move 5.
    game = ScriptedTurns(["a", "b", "c"], 5, rewards={2: {"b": -1}}, ends={"b": (2, "terminated")}, masked=True)
    data = PettingZooWrapper(game, group_map={"x": ["a", "b", "c"]}).rollout(9)
    assert data["x", "mask"].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert data["next", "x", "reward"].squeeze(-1).tolist() == [[0, 0, 0], [0, -1, 0], *[[0, 0, 0]] * 3]
    assert data["next", "x", "terminated"].squeeze(-1).int().tolist() == [[0, 0, 0], *[[0, 1, 0]] * 4]
    assert data["next", "x", "truncated"].squeeze(-1).int().tolist() == [*[[0, 0, 0]] * 4, [1, 0, 1]]
    assert data["next", "x", "action_mask"][2:, 1].all() and not data["next", "x", "observation"][2:, 1].any()
    assert data["next", "x", "observation"][1, 1].any()


def test_an_agent_may_die_in_the_move_of_another():
    game = ScriptedTurns(["a", "b", "c"], 6, ends={"c": (1, "terminated"), "b": (4, "truncated")})
    data = PettingZooWrapper(game).rollout(9)
    assert [column(data, group, "mask") for group in "abc"] == [[1, 0, 1, 0, 1, 1], [0, 1, 0, 1, 0, 0], [0] * 6]
    assert column(data, "c", "next", "terminated") == [1] * 6 and column(data, "c", "next", "truncated") == [0] * 6
    assert column(data, "b", "next", "truncated") == [0, 0, 0, 1, 1, 1]
    assert data["next", "terminated"][-1].item() and data["next", "truncated"][-1].item()


def test_all_may_end_at_once_and_the_next_episode_begins():
    game = ScriptedTurns(["a", "b"], 3)
    data = PettingZooWrapper(game).rollout(7, break_when_any_done=False)
    assert data["next", "done"].flatten().nonzero().flatten().tolist() == [2, 5]
    assert column(data, "a", "mask") == [1, 0, 1, 1, 0, 1, 1]


def test_with_done_on_any_the_first_death_ends_the_game():
    game = ScriptedTurns(["a", "b"], 9, ends={"b": (3, "terminated")})
    data = PettingZooWrapper(game, done_on_any=True).rollout(20)
    assert data.shape == (3,)
    assert column(data, "a", "next", "truncated")[-1] == 1 and column(data, "b", "next", "terminated")[-1] == 1
    assert data["next", "terminated"][-1].item() and not data["next", "truncated"][-1].item()


def test_a_reward_stands_in_the_row_in_which_it_falls_due():
    game = ScriptedTurns(["a", "b"], 4, rewards={1: {"a": 1}, 2: {"a": 10, "b": 2}, 3: {"b": 20}, 4: {"a": 100}})
    data = PettingZooWrapper(game).rollout(9)
    assert column(data, "a", "next", "reward") == [1, 10, 0, 100]
    assert column(data, "b", "next", "reward") == [0, 2, 20, 0]


def test_crediting_moves_each_reward_to_the_agents_own_previous_action():
    game = ScriptedTurns(["a", "b"], 4, rewards={1: {"a": 1}, 2: {"a": 10, "b": 2}, 3: {"b": 20}, 4: {"a": 100}})
    env = PettingZooWrapper(game)
    data = env.rollout(9)
    kept = data.clone()
    credited = env.credit_turns(data)
    assert column(credited, "a", "next", "reward") == [11, 0, 100, 0]
    assert column(credited, "b", "next", "reward") == [0, 22, 0, 0]
    assert credited["next", "a", "observation"][0, 0, 0] == 2  # what a sees at its next turn, after move 2
    assert column(credited, "a", "next", "truncated") == [0, 0, 1, 1]
    assert column(credited, "a", "mask") == [1, 0, 1, 0] and column(credited, "b", "mask") == [0, 1, 0, 1]
    assert (data == kept).all()


def test_a_turn_that_the_batch_cuts_is_not_learnt_from():
    env = PettingZooWrapper(ScriptedTurns(["a", "b", "c"], 30))
    data = env.credit_turns(env.rollout(5))
    assert [column(data, group, "mask") for group in "abc"] == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]
    env = PettingZooWrapper(ScriptedTurns(["a", "b", "c"], 30))
    assert column(env.credit_turns(env.rollout(4)), "b", "mask") == [0, 1, 0, 0]  # b is next, so its turn is over


moves = st.integers(1, 12)
scripts = st.fixed_dictionaries(
    {
        "length": st.integers(3, 12),
        "rewards": st.dictionaries(moves, st.dictionaries(st.sampled_from("abc"), st.integers(-9, 9)), max_size=9),
        "ends": st.dictionaries(
            st.sampled_from("abc"), st.tuples(moves, st.sampled_from(["terminated", "truncated", "both"])), max_size=3
        ),
        "masked": st.booleans(),
    }
)


@given(scripts, st.sampled_from([{}, {"c": 2}, {"b": 1, "c": 4}]))
@settings(max_examples=80, deadline=None)
def test_credited_rows_are_the_trajectories_of_the_plain_loop(script, joins):
    assume(all(when >= joins.get(agent, 0) for agent, (when, _) in script["ends"].items()))  # joins before it ends
    make = lambda: ScriptedTurns(list("abc"), joins=joins, **script)  # noqa: E731
    env = PettingZooWrapper(make())
    env.set_seed(5)
    data = env.rollout(50, lambda td: first_allowed(td, "abc"))
    credited = env.credit_turns(data)
    expected = own_trajectories(make(), 5)
    assert {group: own_rows(credited, group) for group in "abc"} == expected
    due = {group: data["next", group, "reward"].sum().item() for group in "abc"}
    kept = {group: credited["next", group, "reward"].sum().item() for group in "abc"}
    for group in "abc":
        first = data[group, "mask"].flatten().int().argmax().item()
        before = data["next", group, "reward"][: first if data[group, "mask"].any() else None].sum().item()
        assert kept[group] == due[group] - before


@given(scripts)
@settings(max_examples=25, deadline=None)
def test_an_estimator_that_knows_masks_gives_what_each_agents_own_trajectory_gives(script):
    from rl_marl.estimators.multi_agent_gae import MultiAgentGAE

    gamma, lmbda = 0.9, 0.8
    env = PettingZooWrapper(ScriptedTurns(list("abc"), **script), group_map={"x": ["a", "b", "c"]})
    env.set_seed(5)
    data = env.rollout(50, lambda td: first_allowed(td, "x"))
    keys = {"value": ("x", "v"), "advantage": ("x", "advantage"), "value_target": ("x", "target")}
    keys |= {name: ("x", name) for name in ("reward", "done", "terminated")}
    results = []
    for batch in (data, env.credit_turns(data)):
        for part in (batch, batch["next"]):
            part["x", "v"] = part["x", "observation"].sum(-1, keepdim=True)
        gae = MultiAgentGAE(gamma=gamma, lmbda=lmbda)
        gae.set_keys(**keys, agent_mask=("x", "mask"))
        results.append(gae(batch)["x", "advantage"].squeeze(-1))
    for i, steps in enumerate(own_trajectories(ScriptedTurns(list("abc"), **script), 5).values()):
        wanted, following = [], 0.0
        for seen, reward, then, terminated, truncated in reversed(steps):
            delta = reward + gamma * (not terminated) * sum(then) - sum(seen)
            following = delta + gamma * lmbda * (not (terminated or truncated)) * following
            wanted.insert(0, following)
        for found in results:
            own = found[data["x", "mask"][:, i], i]
            assert torch.allclose(own, torch.tensor(wanted), rtol=1e-4, atol=1e-4)


def test_crediting_leaves_a_game_alone_in_which_everybody_acts():
    lives = {"x_0": [(0, 5, "truncated")], "x_1": [(0, 2, "terminated")]}
    env = PettingZooWrapper(ScriptedGame(lives), use_mask=True, done_on_any=False)
    data = env.rollout(12, break_when_any_done=False)
    assert (env.credit_turns(data) == data).all()


def test_crediting_works_on_rows_of_several_environments():
    env = PettingZooWrapper(ScriptedTurns(["a", "b"], 3, rewards={2: {"a": 7}}))
    data = torch.stack([env.rollout(6, break_when_any_done=False) for _ in range(2)])
    credited = credit_turns(data, env.group_map)
    assert credited["next", "a", "reward"].squeeze(-1).squeeze(-1).tolist() == [[7, 0, 0, 7, 0, 0]] * 2


def test_crediting_without_masks_is_an_error():
    env = PettingZooWrapper(ScriptedGame({"x_0": [(0, 5, "truncated")]}))
    with pytest.raises(KeyMissingError, match="use_mask=True"):
        env.credit_turns(env.rollout(3))


def test_a_game_that_keeps_its_dead_is_an_error():
    class Undead(ScriptedTurns):
        def step(self, action):
            if action is not None:
                super().step(action)

    with pytest.raises(EnvError, match="keeps the agent 'a' that has ended"):
        PettingZooWrapper(Undead(["a", "b"], 9, ends={"a": (1, "terminated")})).rollout(9)


# -------------------------------------------------------------------------------------------------- tic-tac-toe
def play_cells(cells):
    env = PettingZooEnv("classic/tictactoe_v3")
    queue = iter(cells)

    def policy(td):
        cell = next(queue)
        for group in env.group_map:
            td.set((group, "action"), torch.tensor([cell]))
        return td

    return env, env.rollout(9, policy)


def test_a_won_game_pays_the_winner_and_charges_the_losers_last_move():
    # Cells are numbered by column: player_1 takes 0, 1, 2; player_2 takes 3, 4.
    env, data = play_cells([0, 3, 1, 4, 2])
    assert data.shape == (5,)
    assert column(data, "player_1", "next", "reward") == [0, 0, 0, 0, 1]
    assert column(data, "player_2", "next", "reward") == [0, 0, 0, 0, -1]
    credited = env.credit_turns(data)
    assert column(credited, "player_1", "next", "reward") == [0, 0, 0, 0, 1]
    assert column(credited, "player_2", "next", "reward") == [0, 0, 0, -1, 0]
    assert column(credited, "player_2", "next", "terminated") == [0, 0, 0, 1, 1]


def test_random_games_are_legal_and_their_returns_sum_to_zero():
    env = PettingZooEnv("classic/tictactoe_v3")
    outcomes = set()
    for seed in range(25):
        torch.manual_seed(seed)
        data = env.rollout(20)
        credited = env.credit_turns(data)
        assert data["next", "terminated"][-1].item() and not data["next", "truncated"][-1].item()  # no illegal move
        returns = [credited["next", f"player_{i}", "reward"].sum().item() for i in (1, 2)]
        assert sum(returns) == 0
        outcomes.add(returns[0])
        cells = [data[f"player_{1 + t % 2}", "action"][t].item() for t in range(len(data))]
        assert len(set(cells)) == len(cells)
    assert outcomes >= {1, -1}


def test_the_waiting_players_mask_allows_everything_and_the_actors_only_free_cells():
    _, data = play_cells([0, 3, 1, 4, 2])
    assert data["player_1", "action_mask"].sum(-1).flatten().tolist() == [9, 9, 7, 9, 5]
    assert data["player_2", "action_mask"].sum(-1).flatten().tolist() == [9, 8, 9, 6, 9]


def test_random_games_seen_through_a_transform_are_legal_too():
    env = TransformedEnv(PettingZooEnv("classic/tictactoe_v3"), lambda td: td)
    data = env.rollout(60, break_when_any_done=False)
    assert not data["next", "truncated"].any()  # an illegal move would end a game in both ways


def test_a_collector_credits_turns_as_it_goes():
    env = PettingZooEnv("classic/tictactoe_v3")
    torch.manual_seed(0)
    for batch in Collector(env, frames_per_batch=40, total_frames=80, postproc=env.credit_turns):
        for group in env.group_map:
            assert not batch["next", group, "reward"][~batch[group, "mask"]].any()
        ended = batch["next", "player_1", "done"] & batch["player_1", "mask"].unsqueeze(-1)
        assert ended.any()
