"""Gymnasium's own loop: random actions and steps of a vector environment; nothing is kept."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
from gymnasium.vector import SyncVectorEnv, VectorEnv


def build(kind: str, n_envs: int, steps: int) -> Callable[[], None]:
    """One repetition takes ``steps`` steps of ``n_envs`` environments, of the vector entry point or of single ones."""
    env = _make(kind, n_envs)
    env.reset(seed=0)
    sample, step = env.action_space.sample, env.step

    def run() -> None:
        for _ in range(steps):
            step(sample())

    return run


def _make(kind: str, n_envs: int) -> VectorEnv:
    if kind == "vector":
        return gymnasium.make_vec("CartPole-v1", n_envs, vectorization_mode="vector_entry_point")
    makers = [lambda: gymnasium.make("CartPole-v1", disable_env_checker=True)] * n_envs
    return SyncVectorEnv(makers)
