"""``CatchEnv``: catch a falling ball with a paddle, seen as pixels; the best return is 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_core import ArrayEnv, Bounded, Columns, Composite, OneHot, RowProgram, Unbounded
from rl_core.errors import EnvError

__all__ = ["CatchEnv"]


class CatchEnv(ArrayEnv):
    """A ball falls one row a step; a paddle of three pixels at the bottom has to be under it.

    The ball starts in a random column of the top row. The paddle starts in the middle and moves by one column: action 0
    left, 1 not, 2 right, one-hot. After ``size - 1`` steps the ball is at the bottom and the episode terminates, with
    reward 1 if it touches the paddle and -1 if not; all other rewards are 0. Every ball can be caught, so the best
    return is exactly 1.

    Args:
        num_envs: environments stepped together; None: one, without a batch dimension.
        size: height and width of the picture, at least 5.
        drift: let the ball drift by -1, 0 or 1 column a step, reflected at the walls: one picture does not show which.
        seed: of the starts; they are drawn from torch's own generator where None.
        device: accepted for compatibility; pictures are made on the CPU.

    Raises:
        EnvError: the picture is too small.

    Example:
        >>> env = CatchEnv(num_envs=2)
        >>> data = env.rollout(100)
        >>> data.batch_size, data["pixels"].shape[2:]
        (torch.Size([2, 7]), torch.Size([1, 8, 8]))
    """

    def __init__(
        self,
        num_envs: int | None = None,
        size: int = 8,
        drift: bool = False,
        seed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(batch_size=() if num_envs is None else (num_envs,), device=device)
        if size < 5:
            raise EnvError(f"CatchEnv needs a picture of at least 5 x 5 pixels; got size={size}")
        self.size, self.drift = size, drift
        batch = self.batch_size
        self.observation_spec = Composite(
            pixels=Bounded(low=0, high=255, shape=(*batch, 1, size, size), dtype=torch.uint8), shape=batch
        )
        self.action_spec = OneHot(3, shape=(*batch, 3))
        self.reward_spec = Unbounded(shape=(*batch, 1), dtype=torch.float32)
        count = batch.numel()
        self._row, self._column, self._speed, self._paddle = (np.zeros(count, dtype=np.int64) for _ in range(4))
        self._generator: torch.Generator | None = None
        if seed is not None:
            self._set_seed(seed)

    def row_program(self, columns: Columns) -> RowProgram:
        size, count = self.size, self.batch_size.numel()
        pixels = columns["pixels"].reshape(-1, count, size, size)
        actions = columns["action"].reshape(-1, count, 3)
        reward = columns["reward"].reshape(-1, count)
        terminated = columns["terminated"].reshape(-1, count)
        everyone = np.arange(count)

        def step(t: int) -> None:
            self._advance(actions[t].argmax(-1))
            landed = self._row == size - 1
            caught = np.abs(self._column - self._paddle) <= 1
            reward[t] = landed * np.where(caught, 1.0, -1.0)
            terminated[t + 1] = landed
            self._draw(pixels[t + 1], everyone)

        def reset(t: int, mask: np.ndarray | None) -> None:
            rows = everyone if mask is None else np.flatnonzero(mask.reshape(-1))
            self._serve(rows)
            self._draw(pixels[t], rows)

        return RowProgram(step, reset)

    def _advance(self, moves: np.ndarray) -> None:
        """Move paddles and balls; a ball that has landed stays."""
        self._paddle = np.clip(self._paddle + moves - 1, 1, self.size - 2)
        self._row = np.minimum(self._row + 1, self.size - 1)
        column = self._column + self._speed
        self._speed = np.where((column < 0) | (column >= self.size), -self._speed, self._speed)
        column = np.abs(column)
        self._column = np.where(column >= self.size, 2 * (self.size - 1) - column, column)

    def _serve(self, rows: np.ndarray) -> None:
        """Begin new episodes."""
        self._row[rows] = 0
        self._column[rows] = self._draw_numbers(0, self.size, len(rows))
        self._speed[rows] = self._draw_numbers(-1, 2, len(rows)) if self.drift else 0
        self._paddle[rows] = self.size // 2

    def _draw_numbers(self, low: int, high: int, count: int) -> np.ndarray:
        return torch.randint(low, high, (count,), generator=self._generator).numpy()

    def _draw(self, pixels: np.ndarray, rows: np.ndarray) -> None:
        pixels[rows] = 0
        for offset in (-1, 0, 1):
            pixels[rows, self.size - 1, self._paddle[rows] + offset] = 255
        pixels[rows, self._row[rows], self._column[rows]] = 255

    def _set_seed(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        balls = np.stack([self._row, self._column, self._speed, self._paddle])
        state = {"balls": torch.from_numpy(balls)}
        return state if self._generator is None else {**state, "generator": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        self._row, self._column, self._speed, self._paddle = state_dict["balls"].numpy().copy()
        if "generator" in state_dict:
            self._generator = torch.Generator()
            self._generator.set_state(state_dict["generator"])
        return True
