"""Libraries of gymnasium environments: MO-Gymnasium's vector rewards, environments of Minari's datasets."""

import gymnasium
import minari
import mo_gymnasium
import numpy as np
import pytest
import torch

from rl_core import check_env_specs, spawn_seeds
from rl_envs import GymEnv, GymWrapper


@pytest.mark.parametrize("num_envs", [0, 2])
@pytest.mark.parametrize("name", ["mo-mountaincar-v0", "deep-sea-treasure-v0"])
def test_vector_rewards_are_mo_gymnasiums(name, num_envs):
    limit = {"max_episode_steps": 15}
    env = GymEnv(name, True, num_envs=num_envs, **limit)
    check_env_specs(env, seed=0)
    env.set_seed(2)
    data = env.rollout(40, break_when_any_done=False)
    seeds = spawn_seeds(2, num_envs) if num_envs else [2]
    for row, seed in zip(data if num_envs else data.unsqueeze(0), seeds, strict=True):
        raw = mo_gymnasium.make(name, **limit)
        observation, _ = raw.reset(seed=seed)
        for step in row:
            assert np.array_equal(step["observation"].numpy(), observation)
            observation, reward, terminated, truncated, _ = raw.step(int(step["action"]))
            assert np.array_equal(step["next", "reward"].numpy(), np.float32(reward)) and reward.ndim == 1
            assert step["next", "done"].item() == (terminated or truncated)
            if terminated or truncated:
                observation, _ = raw.reset()


def test_a_vector_environment_of_mo_gymnasium_is_wrapped():
    makers = [lambda: mo_gymnasium.make("mo-mountaincar-v0", max_episode_steps=6)] * 2
    env = GymWrapper(mo_gymnasium.wrappers.vector.MOSyncVectorEnv(makers))
    data = env.rollout(14, break_when_any_done=False)
    assert data["next", "reward"].shape == (2, 14, *env.reward_shape) and env.reward_shape[0] > 1
    assert data["next", "truncated"].sum() == 4


def test_the_environment_of_a_minari_dataset_is_wrapped(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    collector = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=12), record_infos=False)
    for seed in range(2):
        collector.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, _ = collector.step(collector.action_space.sample())
            over = terminated or truncated
    dataset = collector.create_dataset("rl/recovered-v0", eval_env="CartPole-v1")
    env = GymWrapper(dataset.recover_environment(), categorical_action_encoding=True)
    env.set_seed(0)
    torch.manual_seed(0)
    data = env.rollout(40)
    assert env.name == "CartPole-v1" and 0 < data["next", "done"].shape[0] <= 12 and data["next", "done"][-1]
