"""The memory of an episode table: six tensors that the C++ kernels and their twin both work on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "CLOSES",
    "FILLED",
    "FREE",
    "HEAD",
    "HEADER_SIZE",
    "LANE",
    "LANES",
    "LENGTH",
    "LINKED",
    "MAX_STEPS",
    "NUMBERS",
    "OPENS",
    "PIECES",
    "PIECE_ROOM",
    "PLACE",
    "SLOT_ROOM",
    "START",
    "TableArrays",
]

# Fields of the header (native/episodes.h).
MAX_STEPS, LANES, HEAD, PIECES, NUMBERS, FREE, FILLED, SLOT_ROOM, PIECE_ROOM, HEADER_SIZE = range(10)
# Marks of a row.
CLOSES, OPENS, LINKED = 1, 2, 4
# Columns of a piece.
START, LENGTH, LANE, PLACE = range(4)

_FIRST_ROOM = 1024


@dataclass
class TableArrays:
    """What a table knows, as tensors.

    Attributes:
        header: int64 ``[HEADER_SIZE]``: sizes and positions.
        marks: uint8 ``[slots]``: CLOSES (the episode ends with the row), OPENS (one begins with it), LINKED (the row
            before it in the ring is the one that came before it in time).
        owner: int32 ``[slots]``: the number of the piece that a slot belongs to, -1 for an empty slot.
        pieces: int64 ``[pieces, 4]``: first step, length, lane, and place in `order`, by number.
        order: int64 ``[pieces]``: the numbers of all pieces, without gaps.
        free: int64 ``[pieces]``: a stack of unused numbers.
    """

    header: Tensor
    marks: Tensor
    owner: Tensor
    pieces: Tensor
    order: Tensor
    free: Tensor

    @classmethod
    def empty(cls, max_steps: int, lanes: int) -> TableArrays:
        """The arrays of a table without rows.

        Args:
            max_steps: the ring's length in steps.
            lanes: slots of one step.
        """
        header = torch.zeros(HEADER_SIZE, dtype=torch.int64)
        header[MAX_STEPS], header[LANES], header[HEAD] = max_steps, lanes, -1
        arrays = cls(
            header,
            torch.empty(0, dtype=torch.uint8),
            torch.empty(0, dtype=torch.int32),
            torch.empty(0, 4, dtype=torch.int64),
            torch.empty(0, dtype=torch.int64),
            torch.empty(0, dtype=torch.int64),
        )
        arrays.make_room(min(_FIRST_ROOM, max_steps) * lanes, 0)
        return arrays

    def make_room(self, slots: int, new_pieces: int) -> bool:
        """Grow, at least to twice the size, until `slots` slots and `new_pieces` more pieces fit.

        Returns:
            Whether an array is another one now.
        """
        header = self.header.numpy()  # reading a number of it costs a tenth of reading it from the tensor
        slot_room, piece_room = int(header[SLOT_ROOM]), int(header[PIECE_ROOM])
        if slots > slot_room:
            slot_room = min(int(header[MAX_STEPS] * header[LANES]), max(slots, 2 * slot_room))
            self.marks = _grown(self.marks, slot_room, 0)
            self.owner = _grown(self.owner, slot_room, -1)
            header[SLOT_ROOM] = slot_room
        elif min(int(header[PIECES]) + new_pieces, slot_room) <= piece_room and piece_room > 0:
            return False
        wanted = min(int(header[PIECES]) + new_pieces, slot_room)
        if wanted > piece_room or piece_room == 0:
            piece_room = max(wanted, 2 * piece_room, 64)
            self.pieces = _grown(self.pieces, piece_room, 0)
            self.order = _grown(self.order, piece_room, 0)
            self.free = _grown(self.free, piece_room, 0)
            header[PIECE_ROOM] = piece_room
        return True

    def all(self) -> tuple[Tensor, ...]:
        """The tensors in the order in which kernels take them."""
        return self.header, self.marks, self.owner, self.pieces, self.order, self.free


def _grown(old: Tensor, size: int, fill: int) -> Tensor:
    new = torch.full((size, *old.shape[1:]), fill, dtype=old.dtype)
    new[: old.shape[0]].copy_(old)
    return new
