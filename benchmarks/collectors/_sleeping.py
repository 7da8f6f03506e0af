"""An environment whose step takes a given time and no processor: what waiting for a simulator or a game costs."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Sleeping(gymnasium.Env[Any, Any]):
    """Four random numbers and two actions; episodes of 50 steps.

    Args:
        milliseconds: of a step.
    """

    def __init__(self, milliseconds: float) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.seconds, self.steps = milliseconds / 1e3, 0
        self.numbers = np.random.default_rng(0).uniform(-1, 1, (64, 4)).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.steps = 0
        return self.numbers[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(self.seconds)
        self.steps += 1
        return self.numbers[self.steps], 1.0, self.steps == 50, False, {}
