"""The episode table's operations without the C++ library: step by step as the kernels do them, with equal results."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_buffers.episodes.arrays import (
    CLOSES,
    FILLED,
    FREE,
    HEAD,
    LANE,
    LANES,
    LENGTH,
    LINKED,
    MAX_STEPS,
    NUMBERS,
    OPENS,
    PIECES,
    PLACE,
    START,
    TableArrays,
)
from rl_buffers.gather_reference import check_slots
from rl_core.errors import ReplayBufferError

__all__ = ["TwinKernels"]

_ATTEMPTS = 32  # native/episodes.cpp
_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class TwinKernels:
    """The operations of :class:`~rl_buffers.episodes.kernels.TableKernels` on numpy views of the same memory."""

    def __init__(self, arrays: TableArrays) -> None:
        self._tensors = arrays
        self._header, self._marks, self._owner, self._pieces, self._order, self._free = (
            array.numpy() for array in arrays.all()
        )
        self._steps, self._lanes = int(self._header[MAX_STEPS]), int(self._header[LANES])

    # ------------------------------------------------------------------------------------------------ writing
    def write(self, start: int, steps: int, marks: Tensor) -> None:
        given, header, lanes = marks.tolist(), self._header, self._lanes
        for step in range(steps):
            follows = start + step == header[HEAD]
            for lane in range(lanes):
                mark = given[step * lanes + lane]
                self._append((start + step) * lanes + lane, mark if follows else mark & ~LINKED)
            header[FILLED] = max(header[FILLED], (start + step + 1) * lanes)
            header[HEAD] = (start + step + 1) % self._steps

    def mark(self, slots: Tensor, marks: Tensor) -> None:
        check_slots(slots, int(self._header[FILLED]))
        for slot, mark in zip(slots.tolist(), marks.tolist(), strict=True):
            following = self._after(slot)
            self._marks[slot] = (self._marks[slot] & LINKED) | (mark & (CLOSES | OPENS))
            self._settle(slot)
            if following < self._header[FILLED] and self._owner[following] >= 0:
                self._settle(following)

    def _append(self, slot: int, mark: int) -> None:
        if self._owner[slot] >= 0:
            self._evict(slot)
        following, previous = self._after(slot), self._before(slot)
        if following < self._header[FILLED]:
            self._marks[following] &= 255 - LINKED
        if previous == slot or previous >= len(self._owner) or self._owner[previous] < 0:
            mark &= ~LINKED
        self._marks[slot] = mark
        if self._joined(slot):
            number = self._owner[slot] = self._owner[previous]
            self._pieces[number, LENGTH] += 1
        else:
            self._owner[slot] = self._create(slot // self._lanes, 1, slot % self._lanes)

    def _evict(self, slot: int) -> None:
        number = int(self._owner[slot])
        piece = self._pieces[number]
        offset = self._offset(number, slot)
        if 0 < offset < piece[LENGTH] - 1:
            self._split(number, offset + 1)
        if offset == 0:
            piece[START] = (piece[START] + 1) % self._steps
        piece[LENGTH] -= 1
        if piece[LENGTH] == 0:
            self._remove(number)
        self._owner[slot] = -1

    def _settle(self, slot: int) -> None:
        number = int(self._owner[slot])
        offset, together = self._offset(number, slot), self._joined(slot)
        if offset > 0 and not together:
            self._split(number, offset)
        if offset == 0 and together:
            self._join(int(self._owner[self._before(slot)]), number)

    def _joined(self, slot: int) -> bool:
        mark = int(self._marks[slot])
        return bool(mark & LINKED and not mark & OPENS and not int(self._marks[self._before(slot)]) & CLOSES)

    # ------------------------------------------------------------------------------------------------ pieces
    def _create(self, start: int, length: int, lane: int) -> int:
        header = self._header
        if header[FREE] > 0:
            header[FREE] -= 1
            number = int(self._free[header[FREE]])
        else:
            number = int(header[NUMBERS])
            header[NUMBERS] += 1
        self._pieces[number] = (start, length, lane, header[PIECES])
        self._order[header[PIECES]] = number
        header[PIECES] += 1
        return number

    def _remove(self, number: int) -> None:
        header, place = self._header, self._pieces[number, PLACE]
        header[PIECES] -= 1
        last = self._order[header[PIECES]]
        self._order[place] = last
        self._pieces[last, PLACE] = place
        self._free[header[FREE]] = number
        header[FREE] += 1

    def _split(self, number: int, offset: int) -> None:
        start, length, lane, _ = self._pieces[number].tolist()
        self._pieces[number, LENGTH] = offset
        made = self._create((start + offset) % self._steps, length - offset, lane)
        self._own(made, made)

    def _join(self, earlier: int, later: int) -> None:
        self._own(later, earlier)
        self._pieces[earlier, LENGTH] += self._pieces[later, LENGTH]
        self._remove(later)

    def _own(self, piece: int, number: int) -> None:
        start, length, lane, _ = self._pieces[piece].tolist()
        for offset in range(length):
            self._owner[(start + offset) % self._steps * self._lanes + lane] = number

    def _offset(self, number: int, slot: int) -> int:
        return (slot // self._lanes - int(self._pieces[number, START])) % self._steps

    def _before(self, slot: int) -> int:
        return (slot - self._lanes) % (self._steps * self._lanes)

    def _after(self, slot: int) -> int:
        return (slot + self._lanes) % (self._steps * self._lanes)

    # ------------------------------------------------------------------------------------------------ questions
    def draw(self, words: Tensor, by_step: bool, length: int, span: tuple[int, int], strict: bool, out: Tensor) -> int:
        first, counts = out[0], out[1]
        out.zero_()
        state, attempts = words.clone(), _ATTEMPTS if self._header[PIECES] > 0 else 0
        for _ in range(attempts):
            open_ = (counts == 0).nonzero().squeeze(-1)
            if open_.numel() == 0:
                break
            stream = state[open_]
            if by_step:
                begin, size, piece = self._try_start(stream, length, strict)
            else:
                begin, size, piece = self._try_piece(stream, length, span, strict)
            state[open_] = stream
            step = (piece[:, START] + begin) % self._steps
            found = size > 0
            first[open_] = torch.where(found, step * self._lanes + piece[:, LANE], 0)
            counts[open_] = torch.where(found, size, 0)
        return int((counts == 0).sum())

    def _try_start(self, stream: Tensor, length: int, strict: bool) -> tuple[Tensor, Tensor, Tensor]:
        slot = _below(stream, self._header[FILLED])
        owner = self._tensors.owner[slot].long()
        piece = self._tensors.pieces[owner.clamp(min=0)]
        begin = (slot // self._lanes - piece[:, START]) % self._steps
        left = piece[:, LENGTH] - begin
        whole = (begin == 0) & (not strict)
        size = torch.where(left >= length, length, torch.where(whole, left, 0))
        return begin, torch.where(owner < 0, 0, size), piece

    def _try_piece(
        self, stream: Tensor, length: int, span: tuple[int, int], strict: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        piece = self._tensors.pieces[self._tensors.order[_below(stream, self._header[PIECES])]]
        fits = piece[:, LENGTH] >= length if strict else torch.ones_like(stream, dtype=torch.bool)
        left, right = span
        highest = (piece[:, LENGTH] - length + right).clamp(min=0)
        before = stream.clone()
        begin = _below(stream, highest + left + 1) - left
        # A piece that does not fit takes no second number of the stream.
        stream.copy_(torch.where(fits, stream, before))
        end = torch.minimum(begin + length, piece[:, LENGTH])
        begin = begin.clamp(min=0)
        return begin, torch.where(fits, end - begin, 0), piece

    def locate(self, slots: Tensor, out: Tensor) -> None:
        check_slots(slots, int(self._header[FILLED]))
        out[0] = self._tensors.owner.index_select(0, slots)
        piece = self._tensors.pieces.index_select(0, out[0])
        out[1] = (slots // self._lanes - piece[:, START]) % self._steps
        out[2] = piece[:, LENGTH] - out[1]

    def expand(self, first: Tensor, counts: Tensor, width: int, out: Tensor) -> int:
        check_slots(first, int(self._header[FILLED]))
        if bool((counts < 1).any()) or (width > 0 and bool((counts > width).any())):
            raise ReplayBufferError("a run of rows begins at a slot that holds no row, or is empty")
        places = torch.full_like(counts, width) if width > 0 else counts
        total = int(places.sum())
        within = torch.arange(total) - (places.cumsum(0) - places).repeat_interleave(places)
        within = torch.minimum(within, (counts - 1).repeat_interleave(places))
        start = first.repeat_interleave(places)
        out[:total] = (start // self._lanes + within) % self._steps * self._lanes + start % self._lanes
        return total


def _shifted(value: Tensor, bits: int) -> Tensor:
    """The unsigned shift to the right of 64-bit words."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _below(stream: Tensor, n: Tensor | int) -> Tensor:
    """The next number in ``[0, n)`` of each stream (splitmix64); `stream` moves on in place."""
    stream.add_(_signed(_GOLDEN))
    z = (stream ^ _shifted(stream, 30)) * _signed(_MIX1)
    z = (z ^ _shifted(z, 27)) * _signed(_MIX2)
    z = z ^ _shifted(z, 31)
    uniform = _shifted(z, 11).double() * 2.0**-53
    return torch.floor(uniform * (n.double() if isinstance(n, Tensor) else float(n))).long()
