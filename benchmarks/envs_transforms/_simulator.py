"""A simulator that costs almost nothing: two float64 observations, a float64 reward, episodes of 200 steps."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["ID"]

ID = "Idle-v0"


class Idle(gymnasium.Env):  # type: ignore[type-arg]
    """Observes the number of steps, and its action."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-1e9, 1e9, (3,), np.float64), "speed": spaces.Box(-1, 1, (2,))}
    )
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start counting."""
        super().reset(seed=seed)
        self.place, self.time = np.zeros(3), 0
        return {"place": self.place, "speed": np.zeros(2, dtype=np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self.time += 1
        self.place = self.place + 1.0
        return {"place": self.place, "speed": action}, 1.0, self.time >= 200, False, {}


gymnasium.register(ID, Idle)
