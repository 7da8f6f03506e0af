"""An environment whose steps take one millisecond, and no processor time."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Sleeper(gymnasium.Env[np.ndarray, np.ndarray]):
    """Waits; its episodes have no end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(0.001)
        return np.zeros(4, np.float32), 0.0, False, False, {}
