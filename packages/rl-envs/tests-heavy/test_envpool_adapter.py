"""EnvPool step by step against a raw pool: true last observations, no dummy steps, seeds, infos."""

import pickle

import envpool
import numpy as np
import pytest
import torch

from rl_core import TransformedEnv, check_env_specs, registry, spawn_seeds
from rl_core.errors import EnvError, UnknownNameError
from rl_core.testing import EnvKit
from rl_envs import EnvPoolEnv, EnvPoolWrapper, MultiThreadedEnv, StepCounter

NAMES = ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v4", "LunarLander-v2", "Pong-v5", "CheetahRun-v1"]


class TestCartPoles(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return EnvPoolEnv("CartPole-v1", 3, max_episode_steps=12)


class TestSuite(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return EnvPoolEnv("CheetahRun-v1", 2, max_episode_steps=7)


def same(found, observation):
    if isinstance(observation, dict):
        for name, part in observation.items():
            same(found[name], part)
    else:
        assert np.array_equal(found.numpy(), observation)


@pytest.mark.parametrize("name", NAMES)
def test_every_transition_is_that_of_a_raw_pool(name):
    """The raw pool spends a step on each reset, which here is told apart by hand, row by row."""
    env = EnvPoolEnv(name, 3, True, max_episode_steps=9)
    env.set_seed(5)
    torch.manual_seed(0)
    data = env.rollout(20, break_when_any_done=False)
    check_env_specs(env, seed=0)
    seed = spawn_seeds(5, 3)[0] % (2**31 - 3)
    for number, row in enumerate(data):
        raw = envpool.make_gymnasium(name, num_envs=3, seed=seed, max_episode_steps=9)
        observation, _ = raw.reset()
        for t, step in enumerate(row):
            same(step if isinstance(observation, dict) else step["observation"], _row(observation, number))
            actions = data["action"][:, t].numpy().astype(raw.action_space.dtype)
            observation, reward, terminated, truncated, _ = raw.step(actions)
            now = step["next"]
            same(now if isinstance(observation, dict) else now["observation"], _row(observation, number))
            assert now["reward"].item() == np.float32(reward[number])
            ends = (now["terminated"].item(), now["truncated"].item())
            assert ends == (terminated[number], truncated[number])
            over = np.flatnonzero(terminated | truncated)
            if len(over):
                fresh, _ = raw.reset(over.astype(np.int32))
                observation = _merged(observation, fresh, over)
        raw.close()
    assert data["next", "done"].any() and (data["next", "reward"] != 0).any() == (name != "Pong-v5")
    env.close()


def _row(observation, number):
    if isinstance(observation, dict):
        return {name: _row(part, number) for name, part in observation.items()}
    return observation[number]


def _merged(observation, fresh, over):
    if isinstance(observation, dict):
        return {name: _merged(part, fresh[name], over) for name, part in observation.items()}
    observation = observation.copy()
    observation[over] = fresh
    return observation


def test_no_step_is_spent_on_a_reset():
    env = EnvPoolEnv("CartPole-v1", 8)
    env.set_info_dict_reader(["elapsed_step"])
    data = env.rollout(120, break_when_any_done=False)
    assert (data["next", "reward"] == 1).all()  # EnvPool rewards a dummy step with 0
    ends = data["next", "done"][..., 0]
    assert ends.sum() > 20 and (data["next", "elapsed_step"] >= 1).all()
    starts = data["observation"][:, 1:][ends[:, :-1]]
    assert (starts.abs() <= 0.05).all()
    last = data["next", "observation"][ends]
    assert ((last[:, 0].abs() > 2.4) | (last[:, 2].abs() > 0.2094)).all()


def test_rows_cut_by_a_transform_begin_anew():
    env = TransformedEnv(EnvPoolEnv("CartPole-v1", 3), StepCounter(max_steps=4))
    data = env.rollout(9, break_when_any_done=False)
    assert data["step_count"][..., 0].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0]] * 3
    assert (data["observation"][:, [0, 4, 8]].abs() <= 0.05).all()


def test_lives_and_frames_of_atari():
    env = EnvPoolEnv("Breakout-v5", 2, True, frame_skip=4, stack_num=2, img_height=20, img_width=20)
    env.set_info_dict_reader(["lives"])
    data = env.rollout(5)
    assert data["observation"].shape == (2, 5, 2, 20, 20) and (data["lives"] == 5).all()


def test_names_older_names_and_processes():
    env = registry.envs.make("envpool:CartPole-v1", num_envs=2)
    assert env.name == "CartPole-v1" and "Pong-v5" in registry.envs.ids("envpool")
    assert registry.envs.describe("envpool:CartPole-v1")["options"]["max_episode_steps"] == 500
    old = MultiThreadedEnv(
        3, "CartPole-v1", create_env_kwargs={"max_episode_steps": 4}, categorical_action_encoding=True
    )
    assert old.rollout(9).shape == (3, 4)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.rollout(2).shape == (2, 2)
    with pytest.raises(UnknownNameError, match="CartPole-v1"):
        EnvPoolEnv("CartPol-v1")


def test_pools_made_elsewhere_are_wrapped_and_keep_their_seed():
    pools = [envpool.make_gymnasium("CartPole-v1", num_envs=2, seed=3) for _ in range(2)]
    env = EnvPoolWrapper(pools[0])
    assert np.array_equal(env.reset()["observation"].numpy(), pools[1].reset()[0])
    with pytest.raises(EnvError, match="seed where a pool is made"):
        env.set_seed(1)
    with pytest.raises(EnvError, match="answers 2 of its 4"):
        EnvPoolWrapper(envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2))
    with pytest.raises(EnvError, match="leave batch_size out"):
        EnvPoolEnv("CartPole-v1", 4, batch_size=2)
