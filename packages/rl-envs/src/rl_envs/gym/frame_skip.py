"""Repeat each action for several frames inside the simulator."""

from __future__ import annotations

from typing import Any

from rl_envs.gym.library import gymnasium
from rl_envs.gym.results import wrong_step

__all__ = ["FrameSkip"]


class FrameSkip(gymnasium.Wrapper):
    """Sums the rewards of up to ``frame_skip`` frames and stops at the end of the episode.

    Args:
        env: the environment.
        frame_skip: frames per step, at least 1.
    """

    def __init__(self, env: Any, frame_skip: int) -> None:
        super().__init__(env)
        if frame_skip < 1:
            raise ValueError(f"frame_skip is the number of frames per step, at least 1; got {frame_skip}")
        self.frame_skip = frame_skip

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One action for several frames."""
        total: Any = 0.0
        for _ in range(self.frame_skip):
            result = self.env.step(action)
            try:
                observation, reward, terminated, truncated, info = result
            except (TypeError, ValueError) as error:
                raise wrong_step(type(self.env.unwrapped).__name__, result) from error
            total = total + reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info
