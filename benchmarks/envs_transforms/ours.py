"""rl-envs and rl-collectors: steps with random actions, with or without the six transforms."""

from __future__ import annotations

from collections.abc import Callable

from _simulator import ID

from rl_collectors import Collector
from rl_core import Compose, EnvBase, TransformedEnv
from rl_envs import CatTensors, DoubleToFloat, GymEnv, InitTracker, ObservationNorm, RewardSum, StepCounter


def build(n_envs: int, steps: int, transformed: bool = True, containers: bool = False) -> Callable[[], object]:
    """One repetition takes ``steps`` steps; ``containers`` keeps to TensorDicts, as a transform without rows would."""
    env: EnvBase = GymEnv(ID) if n_envs == 1 else GymEnv(ID, num_envs=n_envs)
    if transformed:
        env = TransformedEnv(
            env,
            Compose(
                DoubleToFloat(),
                ObservationNorm(0.5, 2.0, in_keys=["place"], standard_normal=True),
                CatTensors(in_keys=["place", "speed"], out_key="observation"),
                StepCounter(),
                RewardSum(),
                InitTracker(),
            ),
        )
    if containers:
        env = TransformedEnv(env, lambda td: td)
    batches = iter(Collector(env, None, frames_per_batch=steps * n_envs, total_frames=-1))
    return lambda: next(batches)
