import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from rl_core import Bounded, Composite, TransformedEnv
from rl_core.errors import EnvError
from rl_core.testing import CountingEnv
from rl_envs import GymEnv, PendulumEnv, PublishedEnv, StepCounter, register_gym


def test_gymnasiums_own_checker_accepts_it():
    check_env(PublishedEnv(CountingEnv(length=20)), skip_render_check=True)


def test_it_is_made_by_its_id_with_arguments_and_a_time_limit():
    CountingEnv.register_gym("PublishedCounting-v0", max_episode_steps=4)
    env = gymnasium.make("PublishedCounting-v0", length=3)
    env.reset()
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (True, False)]
    env = gymnasium.make("PublishedCounting-v0", length=9)
    env.reset()
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(4)]
    assert ends[-1] == (False, True)


def test_a_truncation_stays_a_truncation():
    env = PublishedEnv(CountingEnv(length=1, truncate=True))
    env.reset()
    assert env.step(np.zeros(1, dtype=np.float32))[1:4] == (1.0, False, True)


def test_several_observations_are_a_dict():
    register_gym("PublishedPendulum-v0", lambda: TransformedEnv(PendulumEnv(), StepCounter(max_steps=5)))
    env = gymnasium.make("PublishedPendulum-v0")
    observation, _ = env.reset(seed=1)
    assert set(observation) == {"observation", "th", "thdot", "step_count"}
    again, _ = env.reset(seed=1)
    assert np.array_equal(observation["observation"], again["observation"])


def test_a_round_trip_through_both_interfaces_gives_the_same_steps():
    register_gym("PublishedCartPole-v0", lambda: GymEnv("CartPole-v1"))
    ours, theirs = gymnasium.make("PublishedCartPole-v0"), gymnasium.make("CartPole-v1")
    first = ours.reset(seed=3)[0], theirs.reset(seed=3)[0]
    assert ours.action_space == theirs.action_space and np.array_equal(*first)
    for t in range(10):
        mine, native = ours.step(t % 2), theirs.step(t % 2)
        assert np.array_equal(mine[0], native[0]) and mine[1:4] == native[1:4]


def test_several_actions_are_a_dict():
    env = CountingEnv(length=9)
    env.action_spec = Composite({"a": Bounded(-1.0, 1.0, (1,)), "b": Bounded(-1.0, 1.0, (2,), dtype=torch.float32)})
    published = PublishedEnv(env)
    published.reset()
    assert published.step(published.action_space.sample())[1] == 1.0


def test_a_batch_cannot_be_published():
    with pytest.raises(EnvError, match="batch size"):
        PublishedEnv(CountingEnv(batch_size=[2]))
