"""TorchRL: rollouts of SerialEnv or ParallelEnv with random actions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from sleeper import Sleeper
from torchrl.envs import GymEnv, GymWrapper, ParallelEnv, PendulumEnv, SerialEnv


def _sleeper() -> Any:
    return GymWrapper(Sleeper())


MAKERS: dict[str, Any] = {
    "pendulum": PendulumEnv,
    "cartpole": partial(GymEnv, "CartPole-v1", categorical_action_encoding=True),
    "sleeper": _sleeper,
}


def build(task: str, n_envs: int, workers: int, steps: int) -> Callable[[], object]:
    """One repetition is a rollout of ``steps`` steps, through ends; ParallelEnv has a process for each environment."""
    warnings.simplefilter("ignore")
    env = (ParallelEnv if workers else SerialEnv)(n_envs, MAKERS[task])
    return lambda: env.rollout(steps, break_when_any_done=False)
