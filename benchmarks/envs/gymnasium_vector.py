"""gymnasium's vector environments with constant actions: SyncVectorEnv, or AsyncVectorEnv with shared memory.

AsyncVectorEnv has a process for each environment, whatever the case says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from sleeper import Sleeper

MAKERS = {
    "pendulum": partial(gymnasium.make, "Pendulum-v1", disable_env_checker=True),
    "cartpole": partial(gymnasium.make, "CartPole-v1", disable_env_checker=True),
    "sleeper": Sleeper,
}


def build(task: str, n_envs: int, workers: int, steps: int) -> Callable[[], object]:
    """One repetition takes ``steps`` steps of all environments."""
    makers = [MAKERS[task]] * n_envs
    env = AsyncVectorEnv(makers, shared_memory=True) if workers else SyncVectorEnv(makers)
    env.reset(seed=0)
    actions = np.zeros(env.action_space.shape, dtype=env.action_space.dtype)

    def run() -> None:
        for _ in range(steps):
            env.step(actions)

    return run
