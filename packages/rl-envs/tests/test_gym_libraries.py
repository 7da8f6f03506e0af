"""Libraries on gymnasium's interface, step by step against themselves: MuJoCo, Box2D, Atari, toy texts."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

from rl_core import check_env_specs, spawn_seeds
from rl_core.errors import EnvError, PluginNotInstalledError, UnknownNameError
from rl_core.testing import EnvKit
from rl_envs import GymEnv, GymWrapper, gym_backend, set_gym_backend
from rl_envs.gym import making

NAMES = [
    "HalfCheetah-v5",
    "Hopper-v5",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "FrozenLake-v1",
    "Blackjack-v1",
    "ALE/Breakout-v5",
]


def assert_golden(env, make, seeds, steps, categorical):
    """Every transition of our rollout is the raw library's for the same seeds and actions."""
    torch.manual_seed(0)
    data = env.rollout(steps, break_when_any_done=False)
    rows = data if data.batch_dims == 2 else data.unsqueeze(0)
    for row, seed in zip(rows, seeds, strict=True):
        raw = make()  # anew for each row: Box2D keeps something through its resets
        observation, _ = raw.reset(seed=seed)
        for step in row:
            assert_observed(step, observation)
            action = step["action"].numpy() if not categorical else int(step["action"])
            following, reward, terminated, truncated, _ = raw.step(action)
            assert_observed(step["next"], following)
            assert step["next", "reward"].item() == np.float32(reward)
            assert (step["next", "terminated"].item(), step["next", "truncated"].item()) == (terminated, truncated)
            observation = raw.reset()[0] if terminated or truncated else following
    return data


def assert_observed(step, observation):
    if isinstance(observation, tuple):
        found = [step["observation", str(place)].item() for place in range(len(observation))]
        assert found == [int(part) for part in observation]
    else:
        assert np.array_equal(step["observation"].numpy(), np.asarray(observation))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_envs", [0, 2])
def test_every_transition_is_the_librarys(name, num_envs):
    steps = 20 if "ALE" in name else 60
    limit = {} if "ALE" in name else {"max_episode_steps": 25}
    env = GymEnv(name, True, num_envs=num_envs, **limit)
    env.set_seed(3)
    seeds = spawn_seeds(3, num_envs) if num_envs else [3]
    make = partial(gymnasium.make, name, disable_env_checker=True, **limit)
    data = assert_golden(env, make, seeds, steps, isinstance(env.gym_action_space, gymnasium.spaces.Discrete))
    assert "ALE" in name or data["next", "done"].any()
    check_env_specs(env, seed=0)
    env.close()


class TestHalfCheetahs(EnvKit):
    distribution = "rl-envs"
    picklable = False

    def make_env(self):
        return GymEnv("HalfCheetah-v5", num_envs=2, max_episode_steps=9)


class TestLunarLander(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return GymEnv("LunarLander-v3", max_episode_steps=11)


# -------------------------------------------------------------------- Atari
def test_atari_needs_no_registration_by_hand_and_reads_lives():
    env = GymEnv("ALE/Breakout-v5", frame_skip=2, frameskip=1, repeat_action_probability=0.0)
    env.set_info_dict_reader(["lives", "frame_number"])
    env.set_seed(0)
    data = env.rollout(10)
    assert data["observation"].shape == (10, 210, 160, 3) and data["observation"].dtype == torch.uint8
    assert (data["lives"] == 5).all() and data["next", "frame_number"].tolist() == [2 * t for t in range(1, 11)]


def test_lives_are_lost_in_breakout():
    env = GymEnv("ALE/Breakout-v5", True).set_info_dict_reader(["lives"])
    env.set_seed(1)
    data = env.rollout(300, lambda td: td.set("action", torch.tensor(1)))
    lost = data["next", "lives"] - data["lives"]
    assert (
        set(lost.tolist()) == {0, -1}
        and data["next", "done"].flatten().tolist() == (data["next", "lives"] == 0).tolist()
    )


def test_a_family_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(making._FAMILIES, "Nowhere", "no_such_family")
    with pytest.raises(PluginNotInstalledError, match="pip install no-such-family"):
        GymEnv("Nowhere-v0")
    with pytest.raises(UnknownNameError, match="ALE/Pong-v5"):
        GymEnv("ALE/Pongg-v5")


# -------------------------------------------------------------------- options of GymEnv
def test_worker_processes_of_ours_are_made_elsewhere():
    with pytest.raises(EnvError, match=r"num_workers=2.*ParallelEnv\(n, lambda: GymEnv\(id\)\)"):
        GymEnv("CartPole-v1", num_workers=2)


def test_gymnasium_is_the_one_backend():
    with set_gym_backend("gymnasium"):
        env = GymEnv("CartPole-v1", backend="gymnasium")
    assert env.rollout(2).shape == (2,)

    @set_gym_backend(lambda: gymnasium)
    def decorated():
        return gym_backend()

    set_gym_backend(gymnasium).set()
    assert decorated() is gymnasium and gym_backend("gymnasium.spaces") is gymnasium.spaces
    with pytest.raises(EnvError, match=r"'gym' is not supported.*shimmy"):
        set_gym_backend("gym")
    with pytest.raises(EnvError, match="'gym'"):
        GymEnv("CartPole-v1", backend="gym")


# -------------------------------------------------------------------- vector rewards
class Objectives(gymnasium.Env):
    """As MO-Gymnasium has them: a reward space, and a vector of rewards."""

    observation_space, action_space = gymnasium.spaces.Box(-9, 9, (1,)), gymnasium.spaces.Discrete(2)
    reward_space = gymnasium.spaces.Box(-9, 9, (3,))

    def __init__(self, wrong=False):
        self.wrong = wrong

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        gains = np.array([self.count, -1.0, 0.5])
        return np.full(1, self.count, np.float32), gains[:2] if self.wrong else gains, self.count == 3, False, {}


def test_vector_rewards_are_kept_where_the_environment_declares_them():
    gymnasium.register("RlObjectives-v0", entry_point=Objectives)
    try:
        for num_envs in (0, 2):
            env = GymEnv("RlObjectives-v0", num_envs=num_envs, frame_skip=1)
            check_env_specs(env, seed=0)
            rewards = env.rollout(7, break_when_any_done=False)["next", "reward"].reshape(-1, 7, 3)
            assert rewards[0, :, 0].tolist() == [1, 2, 3, 1, 2, 3, 1] and (rewards[..., 2] == 0.5).all()
        skipped = GymEnv("RlObjectives-v0", frame_skip=2).rollout(2)["next", "reward"]
        assert skipped.tolist() == [[3, -2, 1], [3, -1, 0.5]]
    finally:
        gymnasium.registry.pop("RlObjectives-v0")
    with pytest.raises(EnvError, match=r"reward of shape \(2,\); its reward_space says \(3,\)"):
        GymWrapper(Objectives(wrong=True)).rollout(2)
