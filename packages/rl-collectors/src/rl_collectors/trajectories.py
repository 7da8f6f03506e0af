"""Trajectory ids: numbers for the episodes of a batch, in the order in which they start."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TrajectoryCounter"]


class TrajectoryCounter:
    """Numbers trajectories across batches.

    Args:
        rows: environments that step together.
    """

    def __init__(self, rows: int) -> None:
        self.current = torch.arange(rows)
        self.next_id = rows

    def restart(self) -> None:
        """New trajectories in every row."""
        rows = len(self.current)
        self.current = torch.arange(self.next_id, self.next_id + rows)
        self.next_id += rows

    def number(self, done: Tensor) -> Tensor:
        """The ids of a batch's steps.

        Args:
            done: bool ``[rows, T]``, True where a trajectory ends.

        Returns:
            int64 ``[rows, T]``; ids grow with the time at which trajectories start, then with the row.

        Example:
            >>> TrajectoryCounter(2).number(torch.tensor([[False, True, False], [False, False, False]])).tolist()
            [[0, 0, 2], [1, 1, 1]]
        """
        ends = done.cpu().T  # (T, rows): time first, so that the running count follows time
        new = ends.reshape(-1).cumsum(0).reshape(ends.shape) - 1 + self.next_id
        started = torch.where(ends, new, torch.full_like(new, -1))
        ids = torch.cat([self.current.unsqueeze(0), started]).cummax(0).values
        self.next_id += int(ends.sum())
        self.current = ids[-1].clone()
        return ids[:-1].T.contiguous()

    def state_dict(self) -> dict[str, Tensor | int]:
        """The ids in progress and the next new one."""
        return {"current": self.current.clone(), "next_id": self.next_id}

    def load_state_dict(self, state_dict: dict[str, Tensor | int]) -> None:
        """Take a :meth:`state_dict` back."""
        self.current = torch.as_tensor(state_dict["current"]).clone()
        self.next_id = int(state_dict["next_id"])
