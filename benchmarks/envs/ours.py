"""rl-envs: rollouts of SerialEnv or ParallelEnv with random actions, as TensorDicts ``[N, T]``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sleeper import Sleeper

from rl_envs import GymEnv, GymWrapper, ParallelEnv, PendulumEnv, SerialEnv


def _sleeper() -> GymWrapper:
    return GymWrapper(Sleeper())


MAKERS: dict[str, Any] = {
    "pendulum": PendulumEnv,
    "cartpole": partial(GymEnv, "CartPole-v1", categorical_action_encoding=True),
    "sleeper": _sleeper,
}


def build(task: str, n_envs: int, workers: int, steps: int, alone: bool = False) -> Callable[[], object]:
    """One repetition is a rollout of ``steps`` steps, through ends."""
    make = MAKERS[task]
    if workers and not alone:
        env: Any = ParallelEnv(n_envs, make, envs_per_worker=n_envs // workers)
    else:
        env = SerialEnv(n_envs, make)
    return lambda: env.rollout(steps, break_when_any_done=False)
