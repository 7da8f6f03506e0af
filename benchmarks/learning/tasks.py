"""Tasks for gymnasium beside its own: one of ours once more, with the same dynamics and rewards, and the RAM of Pong.

Their names are made known by gymnasium's own spelling, ``module:id``, or by importing this file.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np

__all__ = ["TMaze", "pong_ram"]

FORWARD, UP, DOWN = 0, 1, 2


class TMaze(gymnasium.Env[np.ndarray, int]):
    """``native:TMaze`` of rl-envs: a sign, a corridor, and a junction at which to turn to the side of the sign."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.cell = self.steps = 0
        self.sign = UP

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.cell = self.steps = 0
        self.sign = int(self.np_random.integers(UP, DOWN + 1))
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        self.steps += 1
        at_junction = self.cell == self.length + 1
        if at_junction and action != FORWARD:
            return self._look(), 1.0 if action == self.sign else -1.0, True, False, {}
        moves = action == FORWARD and not at_junction
        self.cell += moves
        return self._look(), 0.0 if moves else -0.1, False, self.steps >= 5 * (self.length + 1), {}

    def _look(self) -> np.ndarray:
        place = 3 if self.cell == self.length + 1 else self.sign - UP if self.cell == 0 else 2
        return np.eye(4, dtype=np.float32)[place]


def pong_ram() -> gymnasium.Env[np.ndarray, int]:
    """Pong on the 128 bytes of the console's memory, scaled to [0, 1]; no more than 2,000 decisions of four frames."""
    gymnasium.register_envs(ale_py)
    space = gymnasium.spaces.Box(0.0, 1.0, (128,), np.float32)
    game = gymnasium.make("ALE/Pong-v5", obs_type="ram", max_num_frames_per_episode=8000)
    return gymnasium.wrappers.TransformObservation(game, lambda ram: (ram / 255).astype(np.float32), space)


gymnasium.register("TMaze", TMaze)
gymnasium.register("PongRam-v0", pong_ram)
