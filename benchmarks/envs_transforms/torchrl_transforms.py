"""TorchRL: the same over GymWrapper, or over SerialEnv for several environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import gymnasium
from _simulator import ID
from torchrl.collectors import Collector
from torchrl.envs import (
    CatTensors,
    Compose,
    DoubleToFloat,
    GymWrapper,
    InitTracker,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)


def _single() -> GymWrapper:
    return GymWrapper(gymnasium.make(ID, disable_env_checker=True))


def build(n_envs: int, steps: int, transformed: bool = True) -> Callable[[], object]:
    """One repetition takes ``steps`` steps."""
    warnings.simplefilter("ignore")
    env = _single() if n_envs == 1 else SerialEnv(n_envs, _single)
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
    batches = iter(Collector(env, None, frames_per_batch=steps * n_envs, total_frames=-1))
    return lambda: next(batches)
