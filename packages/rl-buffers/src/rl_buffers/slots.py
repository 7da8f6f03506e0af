"""Slot arithmetic: from spans, Python indices and lane coordinates to slot numbers, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_core.buffers import Span
from rl_core.errors import ReplayBufferError

__all__ = ["Written", "as_slots", "slots_of", "to_coordinates"]


class Written:
    """Where the rows of one write went; their slots are made when somebody asks.

    Args:
        spans: where the writer put the data's steps.
        steps: how many steps the data hold.
        lanes: rows per step.
    """

    __slots__ = ("_slots", "lanes", "spans", "steps")

    def __init__(self, spans: Sequence[Span], steps: int, lanes: int) -> None:
        self.spans, self.steps, self.lanes = spans, steps, lanes
        self._slots: Tensor | None = None

    @property
    def slots(self) -> Tensor:
        """The slot of each row of the data, -1 for a row that was not stored (see :func:`slots_of`)."""
        if self._slots is None:
            self._slots = slots_of(self.spans, self.steps, self.lanes)
        return self._slots


def slots_of(spans: Sequence[Span], steps: int, lanes: int = 1) -> Tensor:
    """The slot of each row of data that were written.

    Args:
        spans: where the writer put the data's steps.
        steps: how many steps the data hold.
        lanes: rows per step.

    Returns:
        int64 ``[lanes * steps]`` in the order of data ``[lanes, steps]``; -1 for rows that no span names.

    >>> slots_of([Span(3, 5, 1), Span(0, 1, 3)], steps=4)
    tensor([-1,  3,  4,  0])
    """
    if len(spans) == 1 and lanes == 1 and spans[0].stop - spans[0].start == steps:
        return torch.arange(spans[0].start, spans[0].stop)
    places = torch.full((steps,), -1, dtype=torch.int64)
    for start, stop, source in spans:
        places[source : source + stop - start] = torch.arange(start, stop)
    if lanes == 1:
        return places
    slots = places * lanes + torch.arange(lanes).unsqueeze(1)
    return torch.where(places < 0, -1, slots).flatten()


def to_coordinates(slots: Tensor, lane_shape: Sequence[int]) -> Tensor:
    """Slots as (step, lane, ...): int64 ``[B, 1 + len(lane_shape)]``; a negative slot gives a row of -1.

    >>> to_coordinates(torch.tensor([0, 5, -1]), (3,))
    tensor([[ 0,  0],
            [ 1,  2],
            [-1, -1]])
    """
    rest, columns = slots, []
    for size in reversed(lane_shape):
        columns.append(rest % size)
        rest = rest // size
    coordinates = torch.stack([rest, *reversed(columns)], -1)
    return torch.where(slots.unsqueeze(-1) < 0, -1, coordinates)


def _from_coordinates(coordinates: Tensor, lane_shape: Sequence[int]) -> Tensor:
    slots = coordinates[:, 0]
    for position, size in enumerate(lane_shape, start=1):
        slots = slots * size + coordinates[:, position]
    return torch.where((coordinates < 0).any(-1), -1, slots)


def as_slots(index: Any, length: int, lane_shape: Sequence[int] = ()) -> Tensor:
    """What a user may index a buffer with, as slots.

    Args:
        index: an int (negative counts from the last filled slot), a slice, a sequence of ints, a bool mask over the
            filled slots, an integer tensor ``[B]`` or ``[B, 1]``, or, with lanes, coordinates
            ``[B, 1 + len(lane_shape)]``.
        length: the number of filled slots.
        lane_shape: the storage's lanes.

    Returns:
        int64 ``[B]`` on the CPU; not checked against `length`.

    Raises:
        ReplayBufferError: the index is of another kind.

    >>> as_slots(-1, 5), as_slots(slice(1, None, 2), 5), as_slots([4, 0], 5)
    (tensor([4]), tensor([1, 3]), tensor([4, 0]))
    """
    if isinstance(index, slice):
        return torch.arange(length)[index] if (index.step or 1) > 0 else torch.tensor(range(length)[index])
    if isinstance(index, int) and not isinstance(index, bool):
        return torch.tensor([index + length if index < 0 else index])
    slots = torch.as_tensor(index).to("cpu")
    if slots.dtype == torch.bool and slots.shape == (length,):
        return slots.nonzero().squeeze(-1)
    if slots.is_floating_point() or slots.is_complex() or slots.dtype == torch.bool:
        raise ReplayBufferError(
            f"an index is an int, a slice, integers, or a bool mask of shape [{length}]; "
            f"got {slots.dtype} {list(slots.shape)}"
        )
    slots = slots.to(torch.int64)
    if lane_shape and slots.ndim == 2 and slots.shape[1] == 1 + len(lane_shape):
        return _from_coordinates(slots, lane_shape)
    if slots.ndim == 2 and slots.shape[1] == 1:
        slots = slots.squeeze(1)
    if slots.ndim > 1:
        raise ReplayBufferError(
            f"an index has shape [B]{f' or [B, {1 + len(lane_shape)}]' if lane_shape else ''}, got {list(slots.shape)}"
            f" for a storage with {math.prod(lane_shape)} lane(s)"
        )
    return slots.reshape(-1)
