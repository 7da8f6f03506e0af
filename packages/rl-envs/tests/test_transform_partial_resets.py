"""Case C13: three environments, of which one is reset; sums, counts and marks by hand."""

import pytest
import torch

from rl_core import Compose, TransformedEnv
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv
from rl_envs import InitTracker, RewardSum, StepCounter

KINDS = [CountingEnv, ArrayCountingEnv]


def trackers():
    return Compose(RewardSum(), StepCounter(), InitTracker())


def numbers(value):
    return value.squeeze(-1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_row_that_ended_starts_over(kind):
    env = TransformedEnv(kind(length=[99, 4, 99], batch_size=[3]), trackers())  # rewards 1, 2, 3, ...
    data = env.rollout(6, break_when_any_done=False)
    assert numbers(data["next", "step_count"])[0] == numbers(data["next", "step_count"])[2] == [1, 2, 3, 4, 5, 6]
    assert numbers(data["next", "step_count"])[1] == [1, 2, 3, 4, 1, 2]
    assert numbers(data["step_count"])[1] == [0, 1, 2, 3, 0, 1]
    assert numbers(data["next", "episode_reward"]) == [
        [1, 3, 6, 10, 15, 21],
        [1, 3, 6, 10, 1, 3],  # the end still shows the old episode's sum
        [1, 3, 6, 10, 15, 21],
    ]
    assert numbers(data["is_init"])[0] == [True, False, False, False, False, False]
    assert numbers(data["is_init"])[1] == [True, False, False, False, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_that_is_asked_for_touches_its_row_alone(kind):
    env = TransformedEnv(kind(length=99, batch_size=[3]), trackers())
    td = env.reset()
    for _ in range(4):
        td = env.step_mdp(env.rand_step(td))
    td = env.reset(td.set("_reset", torch.tensor([[False], [True], [False]])))
    assert numbers(td["step_count"]) == [4, 0, 4] and numbers(td["episode_reward"]) == [10, 0, 10]
    assert numbers(td["is_init"]) == [False, True, False]
    for _ in range(2):
        td = env.step_mdp(env.rand_step(td))
    assert numbers(td["step_count"]) == [6, 2, 6] and numbers(td["episode_reward"]) == [21, 3, 21]
    assert numbers(td["is_init"]) == [False, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_cut_at_their_own_time(kind):
    env = TransformedEnv(kind(length=[99, 2, 99], batch_size=[3]), StepCounter(max_steps=3))
    nxt = env.rollout(6, break_when_any_done=False)["next"]
    assert numbers(nxt["truncated"])[0] == [False, False, True] * 2 and not nxt["truncated"][1].any()
    assert numbers(nxt["terminated"])[1] == [False, True] * 3 and not nxt["terminated"][0].any()
    assert torch.equal(nxt["done"], nxt["terminated"] | nxt["truncated"])


def test_one_agent_of_one_row_starts_over():
    env = TransformedEnv(GroupCountingEnv([9, 9], batch_size=[2]), trackers())
    td = env.reset()
    for _ in range(2):
        td = env.step_mdp(env.rand_step(td))
    mask = torch.tensor([[[False], [True]], [[False], [False]]])
    td = env.reset(td.set(("agents", "_reset"), mask))
    assert numbers(td["agents", "step_count"]) == [[2, 0], [2, 2]] and numbers(td["step_count"]) == [2, 2]
    assert numbers(td["agents", "episode_reward"]) == [[3, 0], [3, 3]]
    assert numbers(td["agents", "is_init"]) == [[False, True], [False, False]]
    assert numbers(td["episode_team_reward"]) == [6, 6]


def test_the_root_s_limit_cuts_agents_that_began_later():
    env = TransformedEnv(GroupCountingEnv([9, 9], batch_size=[1]), StepCounter(max_steps=3))
    td = env.reset()
    for _ in range(2):
        td = env.step_mdp(env.rand_step(td))
    td = env.reset(td.set(("agents", "_reset"), torch.tensor([[[False], [True]]])))
    nxt = env.rand_step(td)["next"]
    assert numbers(nxt["agents", "step_count"]) == [[3, 1]] and numbers(nxt["truncated"]) == [True]
    assert nxt["agents", "truncated"].all() and nxt["agents", "done"].all() and not nxt["agents", "terminated"].any()


def test_a_parameterless_batch_of_any_size_is_counted():
    from tensordict import TensorDict

    from rl_envs import PendulumEnv

    env = TransformedEnv(PendulumEnv(), Compose(StepCounter(max_steps=2), RewardSum(), InitTracker()))
    data = env.rollout(3, break_when_any_done=False, tensordict=TensorDict({}, batch_size=[4]))
    assert numbers(data["step_count"]) == [[0, 1, 0]] * 4 and numbers(data["is_init"]) == [[True, False, True]] * 4
    assert torch.allclose(data["next", "episode_reward"][:, 1], data["next", "reward"][:, :2].sum(1))
    assert torch.equal(data["next", "episode_reward"][:, 2], data["next", "reward"][:, 2])
