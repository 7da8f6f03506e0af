"""Stable-Baselines3: ``PPO.collect_rollouts`` over SubprocVecEnv, which steps its workers in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from _sleeping import Sleeping
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import SubprocVecEnv


def build(milliseconds: float, frames: int, workers: int) -> Callable[[], object]:
    """One repetition collects ``frames`` frames over ``workers`` environments."""
    env = SubprocVecEnv([partial(Sleeping, milliseconds)] * workers, start_method="forkserver")
    model = PPO("MlpPolicy", env, n_steps=frames // workers, policy_kwargs={"net_arch": [64, 64]}, device="cpu")
    _, callback = model._setup_learn(total_timesteps=10**9)
    return lambda: model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=frames // workers)
