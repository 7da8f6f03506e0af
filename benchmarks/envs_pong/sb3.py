"""Stable-Baselines3: AtariWrapper and VecFrameStack over its DummyVecEnv. Needs ale-py and opencv-python-headless."""

from __future__ import annotations

from collections.abc import Callable

import ale_py
import gymnasium
import numpy as np
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

gymnasium.register_envs(ale_py)


def build(n_envs: int, steps: int) -> Callable[[], object]:
    """One repetition takes ``steps`` steps, with random actions, and keeps observations, rewards and end flags."""
    options = {"frameskip": 1, "repeat_action_probability": 0.0}
    env = VecFrameStack(make_atari_env("ALE/Pong-v5", n_envs, seed=0, env_kwargs=options), 4)
    env.reset()
    space = env.observation_space.shape
    generator = np.random.default_rng(0)

    def run() -> object:
        observations = np.empty((steps, n_envs, *space), dtype=np.uint8)
        rewards, dones = np.empty((steps, n_envs)), np.empty((steps, n_envs), dtype=bool)
        for t in range(steps):
            observations[t], rewards[t], dones[t], _ = env.step(generator.integers(0, env.action_space.n, n_envs))
        return observations, rewards, dones

    return run
