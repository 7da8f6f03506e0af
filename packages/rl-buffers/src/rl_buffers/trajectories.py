"""Whole trajectories of a buffer: listed, iterated, filtered; and trajectories found in or split from plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.table import EpisodeTable
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.keys import Key

__all__ = ["Trajectory", "TrajectoryQueries", "find_start_stop_traj", "split_trajs"]


@dataclass(frozen=True)
class Trajectory:
    """What a buffer holds of one episode.

    Attributes:
        slots: its rows in the order of time, int64 ``[T]``.
        finished: whether its end is among them.
    """

    buffer: Any
    slots: Tensor
    finished: bool

    @property
    def length(self) -> int:
        """The number of rows."""
        return self.slots.numel()

    @property
    def data(self) -> Any:
        """A copy of the rows, ``[T]``."""
        return self[:]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        """Copies of some of its rows (a slice, integers), or one entry of all (a key)."""
        if isinstance(index, str) or (isinstance(index, tuple) and all(isinstance(name, str) for name in index)):
            value = self.buffer.storage.entry(index, self.slots)
            if value is None:
                raise KeyMissingError(f"the rows of this buffer have no tensor entry {index!r}")
            return value
        return self.buffer[self.slots[index]]


class TrajectoryQueries:
    """The questions about whole trajectories that a buffer with episode tables answers."""

    def episodes(self, boundaries: Boundaries | None = None) -> EpisodeTable:
        """The table of the episodes among the rows."""
        raise NotImplementedError

    def trajectories(self, boundaries: Boundaries | None = None) -> list[Trajectory]:
        """All trajectories, the oldest first and lane by lane; their rows are read when they are asked for.

        Slots hold other rows after later writes, so a list is good until then.

        Args:
            boundaries: what ends an episode; default: see :class:`~rl_buffers.Boundaries`.

        Example:
            >>> from rl_buffers import LazyTensorStorage, ReplayBuffer
            >>> from tensordict import TensorDict
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10))
            >>> done = torch.tensor([0, 1, 0, 0, 1]).bool().unsqueeze(-1)
            >>> _ = buffer.extend(TensorDict({"x": torch.arange(5), "next": {"done": done}}, [5]))
            >>> [trajectory["x"].tolist() for trajectory in buffer.trajectories()]
            [[0, 1], [2, 3, 4]]
        """
        table = self.episodes(boundaries)
        if len(table) == 0:
            return []
        table.check()
        order = table.by_age()
        first, counts = table.first_slots()[order], table.lengths()[order]
        finished = table.finished(first).tolist()
        parts = table.expand(first, counts).split(counts.tolist())
        return [Trajectory(self, slots, end) for slots, end in zip(parts, finished, strict=True)]

    def iter_trajectories(self, boundaries: Boundaries | None = None) -> Iterator[Any]:
        """The rows of each trajectory in the order of time, ``[T]``, one trajectory after the other."""
        for trajectory in self.trajectories(boundaries):
            yield trajectory.data

    def filter_trajectories(
        self, predicate: Callable[[Trajectory], Any], boundaries: Boundaries | None = None
    ) -> list[Trajectory]:
        """The trajectories of which `predicate` is true.

        Args:
            predicate: of a :class:`Trajectory`, such as ``lambda t: t.length > 10 and t["next", "reward"].sum() > 0``.
            boundaries: what ends an episode.
        """
        return [trajectory for trajectory in self.trajectories(boundaries) if bool(predicate(trajectory))]


def find_start_stop_traj(
    *, trajectory: Tensor | None = None, end: Tensor | None = None, at_capacity: bool, cursor: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Where trajectories begin and end in an array of steps.

    Args:
        trajectory: numbers that differ from one trajectory to the next, ``[T, *lanes]``. Give this or `end`.
        end: whether a trajectory ends with the step, bool ``[T, *lanes]``.
        at_capacity: whether the array is a full ring, in which the first step may continue the last.
        cursor: in a full ring the place of the oldest step, which continues nothing; ``None``: there is no such place.

    Returns:
        First and last index of each trajectory, int64 ``[N, ndim]``, lane by lane in the order of their last places,
        and the lengths, int64 ``[N]``. A trajectory that runs over the end of the ring has its last index before its
        first.

    >>> first, last, lengths = find_start_stop_traj(end=torch.tensor([0, 1, 0, 0]).bool(), at_capacity=True, cursor=3)
    >>> first.flatten().tolist(), last.flatten().tolist(), lengths.tolist()
    ([3, 2], [1, 2], [3, 1])
    """
    if (trajectory is None) == (end is None):
        raise ReplayBufferError("give one of trajectory and end")
    if end is None:
        assert trajectory is not None
        end = trajectory != trajectory.roll(-1, 0)
    end = end.clone()
    if not at_capacity:
        end[-1] = True
    elif cursor is not None:
        end[cursor - 1] = True
    T = end.shape[0]
    lanes = end.reshape(T, -1)
    lanes[-1] |= ~lanes.any(0)  # a ring of one trajectory without a cursor is cut at its end
    lane, last = lanes.T.nonzero(as_tuple=True)
    before = torch.where(lanes.roll(1, 0), torch.arange(T).unsqueeze(-1), -1)  # a step after an end begins a trajectory
    starts = before.cummax(0).values
    first = starts[last, lane]
    first = torch.where(first < 0, before.amax(0)[lane], first)
    lengths = (last - first) % T + 1
    shape = end.shape[1:]
    columns = torch.unravel_index(lane, shape) if shape else ()
    return torch.stack([first, *columns], -1), torch.stack([last, *columns], -1), lengths


def split_trajs(data: TensorDictBase, done_key: Key = ("next", "done")) -> list[TensorDictBase]:
    """Steps in the order of time as a list of trajectories, each ending where `done_key` is true or the data end.

    A sample of a :class:`~rl_buffers.SliceSampler` gives its slices.

    Args:
        data: a TensorDict ``[T]``, or ``[*B, T]``, of which each row is split by itself.
        done_key: bool ``[*B, T, 1]``.
    """
    done = data.get(done_key, None)
    if done is None:
        raise KeyMissingError(f"the data have no {done_key!r} to be split by: name the end flag with done_key=...")
    rows = data.reshape(-1, data.shape[-1])
    ends = done.reshape(*rows.shape, -1).all(-1)
    ends[:, -1] = True
    lengths = (ends.flatten().nonzero().flatten().diff(prepend=torch.tensor([-1], device=ends.device))).tolist()
    return list(rows.reshape(-1).split(lengths))
