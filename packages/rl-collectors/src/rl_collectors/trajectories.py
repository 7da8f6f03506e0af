"""Trajectory ids: numbers for the episodes of a batch, in the order in which they start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["TrajectoryCounter", "TrajectoryIds"]


@dataclass
class TrajectoryIds:
    """Where new ids come from; counters that share one never give an id twice.

    Attributes:
        next_id: the next new one.
    """

    next_id: int = 0

    def take(self, count: int) -> int:
        """Reserve ``count`` ids; returns the first."""
        first = self.next_id
        self.next_id += count
        return first


class TrajectoryCounter:
    """Numbers trajectories across batches.

    A trajectory gets its id with its first step, so that ids have no gaps.

    Args:
        rows: environments that step together.
        ids: shared with other counters; default: its own.
    """

    def __init__(self, rows: int, ids: TrajectoryIds | None = None) -> None:
        self.current = torch.full((rows,), -1)  # -1: a trajectory that has not begun
        self.ids = TrajectoryIds() if ids is None else ids

    def restart(self, rows: Tensor | Sequence[int] | None = None) -> None:
        """New trajectories in every row, or in the rows that a mask or a list of indices names."""
        self.current[slice(None) if rows is None else torch.as_tensor(rows)] = -1

    def number(self, done: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The ids of a batch's steps.

        Args:
            done: bool ``[rows, T]``, True where a trajectory ends.
            lengths: int64 ``[rows]``, how many of the steps were taken; default: all.

        Returns:
            int64 ``[rows, T]``; ids grow with the time at which trajectories start, then with the row; -1 where no step
            was taken.

        Example:
            >>> TrajectoryCounter(2).number(torch.tensor([[False, True, False], [False, False, False]])).tolist()
            [[0, 0, 2], [1, 1, 1]]
        """
        ends = done.cpu().T.clone()  # (T, rows): time first, so that the running count follows time
        steps = len(ends)
        taken = torch.full_like(self.current, steps) if lengths is None else lengths
        self._begin(taken > 0)
        time = torch.arange(steps).unsqueeze(-1)
        last = ends & (time == taken - 1)
        ends &= time < taken - 1  # an end at the last step is followed by a trajectory of the next batch
        first = self.ids.take(int(ends.sum()))
        started = torch.where(ends, ends.reshape(-1).cumsum(0).reshape(ends.shape) - 1 + first, -1)
        ids = torch.cat([self.current.unsqueeze(0), started[:-1]]).cummax(0).values
        self.current = torch.where(last.any(0), -1, ids[-1])
        return ids.masked_fill(time >= taken, -1).T.contiguous()

    def _begin(self, rows: Tensor) -> None:
        fresh = (self.current < 0) & rows
        count = int(fresh.sum())
        first = self.ids.take(count)
        self.current[fresh] = torch.arange(first, first + count)

    def state_dict(self) -> dict[str, Tensor | int]:
        """The ids in progress and the next new one."""
        return {"current": self.current.clone(), "next_id": self.ids.next_id}

    def load_state_dict(self, state_dict: dict[str, Tensor | int]) -> None:
        """Take a :meth:`state_dict` back."""
        self.current = torch.as_tensor(state_dict["current"]).clone()
        self.ids.next_id = int(state_dict["next_id"])
