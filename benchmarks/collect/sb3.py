"""Stable-Baselines3: ``PPO.collect_rollouts`` over its DummyVecEnv (its value network and rollout buffer included)."""

from __future__ import annotations

from collections.abc import Callable

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def build(n_envs: int, steps: int) -> Callable[[], object]:
    """One repetition collects ``steps`` steps of ``n_envs`` environments."""
    env = make_vec_env("CartPole-v1", n_envs=n_envs, seed=0)
    model = PPO("MlpPolicy", env, n_steps=steps, policy_kwargs={"net_arch": [64, 64]}, device="cpu")
    _, callback = model._setup_learn(total_timesteps=10**9)
    return lambda: model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=steps)
