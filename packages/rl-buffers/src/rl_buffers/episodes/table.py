"""The episode table: which rows belong together, kept up to date by each write and asked in time of the batch alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_buffers.episodes.arrays import (
    CLOSES,
    FILLED,
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
from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.kernels import kernels_for
from rl_buffers.sent import received, sent
from rl_core.buffers import Span, Storage
from rl_core.errors import CheckpointError, KeyMissingError, ReplayBufferError

__all__ = ["EpisodeTable", "Place"]


class Place(NamedTuple):
    """Where rows lie in their pieces, int64 ``[B]`` each.

    Attributes:
        piece: the number of the piece.
        offset: how many rows of the piece come before.
        left: how many rows there are from this one to the piece's last, both counted.
    """

    piece: Tensor
    offset: Tensor
    left: Tensor


class EpisodeTable:
    """The pieces of episodes that a storage holds.

    A piece is a longest run of rows that were written one after the other into one lane, with no end of an episode
    between them. The oldest row of a full ring begins a piece and the newest one ends one, so no piece runs over the
    write cursor; the piece that is being written grows, and one whose oldest row is overwritten shrinks.

    A write costs time of its rows, a question of its batch, none of the capacity. Flags that are changed in place cost
    time of the episodes that they split or join.

    Args:
        boundaries: what ends an episode.
    """

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.version = 0
        """Counts changes."""
        self._arrays = TableArrays.empty(1, 1)
        self._ready = False
        self._problem: Exception | None = None
        self._bind()

    def _bind(self) -> None:
        self._kernels = kernels_for(self._arrays)
        self._header = self._arrays.header.numpy()  # shares the memory; reading a number of it is cheap
        self._steps, self._lanes = int(self._header[MAX_STEPS]), int(self._header[LANES])

    # ------------------------------------------------------------------------------------------------ learning
    def written(self, storage: Storage, spans: Sequence[Span], run: int = 0) -> None:
        """Take note of rows that were just written.

        Args:
            storage: it holds them by now.
            spans: where the writer put them.
            run: how many consecutive data steps follow each other in time, where data of several environments
                were laid end to end; 0: all.
        """
        self._start(storage)
        expected = 0
        for start, stop, source in spans if len(spans) == 1 else sorted(spans, key=lambda span: span.source):
            marks = self._marks(storage, start, stop)
            if source != expected:  # data steps before this one were not stored
                marks[: self._lanes] &= 255 - LINKED
            if run > 0:
                marks[(-source) % run :: run] &= 255 - LINKED
            self._write(start, stop, marks)
            expected = source + stop - start

    def changed(self, storage: Storage, slots: Tensor) -> None:
        """Take note of filled rows that were overwritten in place (int64 ``[B]``)."""
        if slots.numel() == 0:
            return
        self._start(storage)
        slots = torch.cat([slots, self._after(slots)]).unique()
        slots = slots[slots < int(self._header[FILLED])]
        marks = self._read(storage, slots)
        if self._arrays.make_room(0, 2 * slots.numel()):
            self._bind()
        self._kernels.mark(slots, marks)
        self.version += 1

    def empty(self) -> None:
        """Forget all rows."""
        self._ready, self._problem = False, None
        self._arrays = TableArrays.empty(1, 1)
        self._bind()
        self.version += 1

    def rebuild(self, storage: Storage, cursor: int | None = 0) -> None:
        """Read the flags of all rows that `storage` holds.

        Args:
            storage: rows in the order in which they were written.
            cursor: the place of the oldest row in a full ring; ``None``: the rows are in no order of time.
        """
        self.empty()
        if len(storage) == 0:
            return
        self._start(storage)
        steps = len(storage) // self._lanes
        first = cursor if cursor is not None and steps == self._steps else 0
        for start, stop in ((first, steps), (0, first)):
            if stop > start:
                marks = self._marks(storage, start, stop)
                self._write(start, stop, marks if cursor is not None else marks & (255 - LINKED))

    def _start(self, storage: Storage) -> None:
        """Learn the storage's capacity and lanes, which it knows once it was written to."""
        if self._ready:
            return
        lanes = 1
        for size in storage.lane_shape:
            lanes *= size
        self._arrays = TableArrays.empty(storage.max_steps, lanes)
        self._ready = True
        self._bind()

    def _marks(self, storage: Storage, start: int, stop: int) -> Tensor:
        """The marks of consecutive steps, all of them linked to the one before."""
        slots = torch.arange(start * self._lanes, stop * self._lanes)
        return self._read(storage, slots) | LINKED

    def _read(self, storage: Storage, slots: Tensor) -> Tensor:
        """Marks by the rule; where the rows do not have what it needs, every question says so later."""
        filled = len(storage)
        try:
            return self.boundaries.marks(storage, slots, lambda slots: self._before(slots, filled))
        except (KeyMissingError, ReplayBufferError) as problem:
            self._problem = problem
            return torch.zeros(slots.numel(), dtype=torch.uint8)

    def _write(self, start: int, stop: int, marks: Tensor) -> None:
        if self._arrays.make_room(stop * self._lanes, 2 * (stop - start) * self._lanes):
            self._bind()
        self._kernels.write(start, stop - start, marks)
        self.version += 1

    def _before(self, slots: Tensor, rows: int) -> Tensor:
        """The slot of the row before in the same lane, -1 where that is not among the `rows` filled ones."""
        before = torch.where(slots >= self._lanes, slots - self._lanes, slots + (self._steps - 1) * self._lanes)
        return torch.where(before < rows, before, -1)

    def _after(self, slots: Tensor) -> Tensor:
        total = self._steps * self._lanes
        following = slots + self._lanes
        return torch.where(following < total, following, following - total)

    # ------------------------------------------------------------------------------------------------ questions
    def __len__(self) -> int:
        """The number of pieces."""
        return int(self._header[PIECES])

    def check(self) -> None:
        """Raise if the rows did not tell where episodes end, or there are no rows."""
        if self._problem is not None:
            raise type(self._problem)(*self._problem.args)
        if int(self._header[PIECES]) == 0:
            raise ReplayBufferError("the storage is empty: add or extend before sampling")

    def lengths(self) -> Tensor:
        """The number of rows of each piece, int64 ``[pieces]``."""
        return self._present()[:, LENGTH]

    def first_slots(self) -> Tensor:
        """The slot of the oldest row of each piece, int64 ``[pieces]``."""
        pieces = self._present()
        return pieces[:, START] * self._lanes + pieces[:, LANE]

    def by_age(self) -> Tensor:
        """Places of the pieces (as in :meth:`lengths`), the oldest first and lane by lane, int64 ``[pieces]``."""
        pieces, header = self._present(), self._arrays.header
        full = int(header[FILLED]) == self._steps * self._lanes
        age = (pieces[:, START] - (int(header[HEAD]) if full else 0)) % self._steps
        return (pieces[:, LANE] * self._steps + age).argsort()

    def _present(self) -> Tensor:
        return self._arrays.pieces.index_select(0, self._arrays.order[: len(self)])

    def locate(self, slots: Tensor) -> Place:
        """Where filled slots (int64 ``[B]``) lie in their pieces.

        Raises:
            ReplayBufferError: a slot holds no row.
        """
        out = torch.empty(3, slots.numel(), dtype=torch.int64)
        self._kernels.locate(slots.contiguous(), out)
        return Place(out[0], out[1], out[2])

    def shift(self, slots: Tensor, steps: Tensor) -> Tensor:
        """The slots that lie `steps` rows later in the same lane of the ring, int64 ``[B]``."""
        return (slots // self._lanes + steps) % self._steps * self._lanes + slots % self._lanes

    def finished(self, slots: Tensor) -> Tensor:
        """Whether each slot's episode was seen to end (by its last row, or by the next one), bool ``[B]``."""
        last = self.shift(slots, self.locate(slots).left - 1)
        following = self._after(last)
        marks = self._arrays.marks
        known = following < int(self._header[FILLED])
        opened = marks.index_select(0, torch.where(known, following, last))
        opened = known & ((opened & (LINKED | OPENS)) == LINKED | OPENS)
        return ((marks.index_select(0, last) & CLOSES) != 0) | opened

    def draw(
        self,
        n: int,
        length: int,
        *,
        by_step: bool = False,
        strict: bool = True,
        span: tuple[int, int] = (0, 0),
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw slices with replacement.

        Args:
            n: how many.
            length: rows of a slice.
            by_step: uniform over all possible starts; else a piece is drawn uniformly, then a start in it.
            strict: leave out pieces that are shorter; else they come whole.
            span: how many rows a slice may lack at the beginning and at the end of its piece.
            generator: source of randomness.

        Returns:
            The first slot and the number of rows of each slice, int64 ``[n]``.

        Raises:
            ReplayBufferError: there are no rows, or no piece is long enough.
        """
        self.check()
        words = torch.randint(2**63 - 1, (n,), generator=generator)
        out = torch.empty(2, n, dtype=torch.int64)
        if self._kernels.draw(words, by_step, length, span, strict, out):
            self._draw_the_rest(out, length, by_step, strict, span, generator)
        first, counts = out.unbind(0)
        return first, counts

    def _draw_the_rest(
        self,
        out: Tensor,
        length: int,
        by_step: bool,
        strict: bool,
        span: tuple[int, int],
        generator: torch.Generator | None,
    ) -> None:
        """The same law for slices whose attempts failed since few pieces are long enough: look at all pieces."""
        missing = (out[1] == 0).nonzero().squeeze(-1)
        pieces = self._present()
        lengths = pieces[:, LENGTH]
        if strict:
            pieces = pieces[lengths >= length]
        if pieces.shape[0] == 0:
            raise ReplayBufferError(
                f"no episode has {length} rows: the longest of {len(self)} pieces has {int(lengths.max())}. Ask for "
                "shorter slices, store more rows, or pass strict_length=False to get short episodes whole."
            )
        if by_step:
            total = _starts(pieces, length, span).cumsum(0)
            drawn = torch.randint(int(total[-1]), (missing.numel(),), generator=generator)
            chosen = torch.searchsorted(total, drawn, right=True)
            within = drawn - (total[chosen] - _starts(pieces[chosen], length, span))
        else:
            chosen = torch.randint(pieces.shape[0], (missing.numel(),), generator=generator)
            within = _draw_start(pieces[chosen], length, span, generator)
        out[0, missing], out[1, missing] = self._slices(pieces[chosen], within, length, span)

    def slices_of(
        self, places: Tensor, length: int, span: tuple[int, int] = (0, 0), generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """One slice with a random start in each of the pieces at `places` (as in :meth:`lengths`), int64 ``[n]``.

        Returns:
            The first slot and the number of rows of each, as from :meth:`draw`; shorter pieces come whole.
        """
        pieces = self._present().index_select(0, places)
        return self._slices(pieces, _draw_start(pieces, length, span, generator), length, span)

    def _slices(self, pieces: Tensor, within: Tensor, length: int, span: tuple[int, int]) -> tuple[Tensor, Tensor]:
        begin = within - span[0]
        end = torch.minimum(begin + length, pieces[:, LENGTH])
        begin = begin.clamp(min=0)
        first = (pieces[:, START] + begin) % self._steps * self._lanes + pieces[:, LANE]
        return first, end - begin

    def expand(self, first: Tensor, counts: Tensor, width: int = 0) -> Tensor:
        """The slots of runs of consecutive rows, one run after the other.

        Args:
            first: the first slot of each run, int64 ``[n]``.
            counts: rows of each run, int64 ``[n]``; a run may not be longer than its lane.
            width: 0, or the number of places of each run, where the last slot is repeated.

        Returns:
            int64 ``[sum(counts)]`` or ``[n * width]``.
        """
        total = first.numel() * width if width > 0 else int(counts.sum())
        out = torch.empty(total, dtype=torch.int64)
        self._kernels.expand(first.contiguous(), counts.contiguous(), width, out)
        return out

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """The marks of all rows and the pieces in the order in which they are drawn from."""
        header = self._arrays.header
        return {
            "ready": self._ready,
            "header": header.clone(),
            "marks": self._arrays.marks[: int(header[FILLED])].clone(),
            "pieces": self._present(),
            "problem": None if self._problem is None else str(self._problem),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state, of a storage with as many steps and lanes."""
        self.empty()
        if not state_dict["ready"]:
            return
        saved, pieces = state_dict["header"], state_dict["pieces"]
        filled, n = int(saved[FILLED]), pieces.shape[0]
        if state_dict["marks"].numel() != filled or n != int(saved[PIECES]):
            raise CheckpointError(
                f"an episode table of {filled} rows and {int(saved[PIECES])} pieces was saved with "
                f"{state_dict['marks'].numel()} marks and {n} pieces: the copy is incomplete"
            )
        arrays = TableArrays.empty(int(saved[MAX_STEPS]), int(saved[LANES]))
        arrays.make_room(filled, n)
        arrays.marks[:filled] = state_dict["marks"]
        arrays.pieces[:n] = pieces
        arrays.pieces[:n, PLACE] = arrays.order[:n] = torch.arange(n)
        arrays.header[HEAD], arrays.header[FILLED] = saved[HEAD], saved[FILLED]
        arrays.header[PIECES] = arrays.header[NUMBERS] = n
        self._arrays, self._ready = arrays, True
        self._bind()
        slots = self.expand(self.first_slots(), self.lengths())
        arrays.owner[slots] = torch.arange(n, dtype=torch.int32).repeat_interleave(self.lengths())
        if state_dict["problem"] is not None:
            self._problem = ReplayBufferError(state_dict["problem"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernels": None, "_arrays": [sent(array) for array in self._arrays.all()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrays = TableArrays(*(received(array) for array in state["_arrays"]))
        self._bind()


def _starts(pieces: Tensor, length: int, span: tuple[int, int]) -> Tensor:
    """In how many ways a slice can lie in each piece."""
    left, right = span
    return (pieces[:, LENGTH] - length + right).clamp(min=0) + left + 1


def _draw_start(pieces: Tensor, length: int, span: tuple[int, int], generator: torch.Generator | None) -> Tensor:
    uniform = torch.rand(pieces.shape[0], generator=generator, dtype=torch.float64)
    return (uniform * _starts(pieces, length, span)).long()
