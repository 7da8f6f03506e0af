"""Frame budgets: how many steps each batch takes, so that the frames add up exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rl_core.errors import CollectorError

__all__ = ["FrameBudget"]


@dataclass(frozen=True)
class FrameBudget:
    """Frames of a batch and of a whole run, for ``rows`` environments that step together.

    Every batch holds ``frames_per_batch`` frames, the last one what remains of ``total_frames``; -1 stands for no end.
    """

    rows: int
    frames_per_batch: int
    total_frames: int = -1

    @classmethod
    def checked(cls, rows: int, frames_per_batch: int, total_frames: int | None, rounding: str | None) -> FrameBudget:
        """A budget whose numbers divide by the number of environments.

        Args:
            rows: environments that step together.
            frames_per_batch: frames in a batch, a multiple of ``rows``.
            total_frames: frames in all, a multiple of ``rows``; None or -1 for no end.
            rounding: "up" rounds numbers that do not divide; None raises.

        Raises:
            CollectorError: a number does not divide, or is not positive.
        """
        if frames_per_batch < 1:
            raise CollectorError(f"frames_per_batch is {frames_per_batch}; a batch holds at least one frame")
        if rounding not in (None, "up"):
            raise CollectorError(f"rounding is {rounding!r}; it is None (numbers must divide) or 'up'")
        total = -1 if total_frames is None else total_frames
        if total != -1 and total < 1:
            raise CollectorError(f"total_frames is {total}; give a positive number, or -1 for no end")
        fixed = []
        for name, number in (("frames_per_batch", frames_per_batch), ("total_frames", total)):
            if number > 0 and number % rows:
                up = number + rows - number % rows
                if rounding is None:
                    raise CollectorError(
                        f"{name}={number} does not divide by the {rows} environments that step together; use {up} (or "
                        f"{number - number % rows}), or pass rounding='up'"
                    )
                number = up
            fixed.append(number)
        return cls(rows, *fixed)

    def steps(self, done_frames: int) -> int:
        """Steps of the next batch after ``done_frames`` frames; 0 when the total is reached."""
        left = self.frames_per_batch if self.total_frames < 0 else self.total_frames - done_frames
        return max(0, min(self.frames_per_batch, left)) // self.rows

    def __iter__(self) -> Iterator[int]:
        """The frames of each batch of a run."""
        frames = 0
        while steps := self.steps(frames):
            yield steps * self.rows
            frames += steps * self.rows
