"""SliceSampler: parts of trajectories, drawn with replacement and laid end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.in_buffer import KnowsEpisodes
from rl_buffers.episodes.table import EpisodeTable
from rl_buffers.samplers.slice_marks import end_levels, mark_ends, mark_starts
from rl_core.buffers import Sampler, Storage
from rl_core.errors import ReplayBufferError
from rl_core.keys import Key

__all__ = ["SliceSampler"]

_START, _END = "slice_start", "slice_end"
_MASK: Key = ("collector", "mask")
_LEARNING = "learning_mask"


class SliceSampler(Sampler):
    """Draws slices of consecutive rows of one episode, laid end to end in a batch ``[num_slices * slice_len]``.

    A slice never runs over the end of an episode, the buffer's write cursor or the filled rows, and every start from
    which it fits is possible, so that the last row of an episode comes too. The episode that is being written counts
    with the rows it has. In the batch, ("next", "truncated") and ("next", "done") are set in the last row of each slice
    (in addition to what is stored) and "is_init", where rows have it, in the first.

    Of a :class:`~rl_buffers.TensorDictReplayBuffer` a sample costs time of its batch, whatever the capacity. Used
    without a buffer of this package the sampler reads all end flags anew after each write.

    Args:
        num_slices: how many slices a batch holds; each has ``batch_size / num_slices`` rows.
        slice_len: rows of a slice; a batch holds ``batch_size / slice_len``. Give one of the two.
        end_key: the entry that is true where an episode ends. With none of the next four, ("collector", "traj_ids") or
            "episode" and ("next", "done") are used, as far as rows have them.
        end_keys: several such entries.
        traj_key: an entry that differs from one episode to the next; ends are then not looked at.
        ends: end flags by slot, bool ``[capacity]``, for rows that have none.
        trajectories: episode numbers by slot, ``[capacity]``.
        cache_values: accepted; episodes are always known.
        truncated_key: where slice ends are marked; its neighbours "done" and "terminated" are kept consistent, and so
            are the end flags of groups. ``None``: no marks.
        strict_length: leave out episodes with fewer rows than a slice. ``False`` gives them whole, and the batch is
            then shorter than asked for, unless `pad_output`.
        pad_output: fill up short slices by repeating their last row; ("collector", "mask") tells rows from repetitions.
        compile: accepted, without effect.
        span: slices may begin before their episode (first value) or go beyond its end (second), by so many rows or,
            with ``True``, by all but one; they are shorter then.
        use_gpu: accepted, without effect: slots are drawn on the CPU.
        init_key: the entry that marks states which follow none.
        uniform_over: "trajectories" draws an episode uniformly and then a start in it, so that rows of short episodes
            come more often; "steps" draws uniformly over all starts.
        burn_in: rows at the beginning of each slice that only bring a recurrent state up to date; the batch then has
            "learning_mask", bool ``[B]``, false for these (and for repetitions).

    Raises:
        ReplayBufferError: not exactly one of `num_slices` and `slice_len` is given, or options exclude each other.

    Example:
        >>> from rl_buffers import LazyTensorStorage, TensorDictReplayBuffer
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=3), batch_size=6
        ... )
        >>> done = torch.tensor([0, 0, 0, 1, 0, 0, 0, 0, 0, 1]).bool().unsqueeze(-1)
        >>> _ = buffer.extend(TensorDict({"t": torch.arange(10), "next": {"done": done}}, [10]))
        >>> batch = buffer.sample()
        >>> batch["t"].reshape(2, 3).diff().tolist(), batch["next", "truncated"].flatten().tolist()
        ([[1, 1], [1, 1]], [False, False, True, False, False, True])
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: Key | None = None,
        end_keys: Sequence[Key] | None = None,
        traj_key: Key | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: Key | None = ("next", "truncated"),
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict[str, Any] = False,
        span: bool | int | tuple[bool | int, bool | int] = False,
        use_gpu: bool | torch.device = False,
        init_key: Key = "is_init",
        uniform_over: Literal["trajectories", "steps"] = "trajectories",
        burn_in: int = 0,
    ) -> None:
        if (num_slices is None) == (slice_len is None):
            raise ReplayBufferError(f"give one of num_slices and slice_len, got {num_slices} and {slice_len}")
        if (num_slices or slice_len or 0) < 1:
            raise ReplayBufferError(f"num_slices and slice_len are at least 1, got {num_slices} and {slice_len}")
        if uniform_over not in ("trajectories", "steps"):
            raise ReplayBufferError(f"uniform_over is 'trajectories' or 'steps', got {uniform_over!r}")
        self.num_slices, self.slice_len = num_slices, slice_len
        self.boundaries = Boundaries(
            end_key=end_key, end_keys=end_keys, traj_key=traj_key, ends=ends, trajectories=trajectories
        )
        self.cache_values = cache_values
        self.truncated_key, self.init_key = truncated_key, init_key
        self.strict_length, self.pad_output = strict_length, pad_output
        self.span: tuple[bool | int, bool | int] = span if isinstance(span, tuple) else (span, span)
        self.uniform_over = uniform_over
        self.burn_in = burn_in
        if uniform_over == "steps" and self.span != (False, False):
            raise ReplayBufferError("uniform_over='steps' draws whole slices: leave out span")
        self._table: EpisodeTable | None = None
        self._attached = False
        self._levels: list[Key] | None = None
        self._places: tuple[int, int, tuple[Tensor, Tensor, Tensor]] | None = None

    # ------------------------------------------------------------------------------------------------ the table
    def attach(self, buffer: Any) -> None:
        """Share the buffer's episode table."""
        self._levels = None
        if isinstance(buffer, KnowsEpisodes):
            self._table, self._attached = buffer.episodes(self.boundaries), True

    def _table_of(self, storage: Storage) -> EpisodeTable:
        if self._table is None:
            self._table = EpisodeTable(self.boundaries)
            self._table.rebuild(storage)
        self._table.check()
        return self._table

    def extend(self, index: Tensor) -> None:
        """On its own, the sampler reads the end flags again."""
        self._forget()

    def mark_update(self, index: Tensor) -> None:
        """On its own, the sampler reads the end flags again."""
        self._forget()

    def empty(self) -> None:
        """Start over."""
        self._forget()
        self._levels = None

    def _forget(self) -> None:
        if not self._attached:
            self._table = None

    # ------------------------------------------------------------------------------------------------ drawing
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Slots of the slices, int64 ``[B]``; fewer than `batch_size` where short episodes are taken whole.

        Raises:
            ReplayBufferError: the batch size is no multiple, there are no rows, or no episode is long enough.
        """
        n, length = self.split(batch_size)
        table = self._table_of(storage)
        first, counts = table.draw(
            n,
            length,
            by_step=self.uniform_over == "steps",
            strict=self.strict_length,
            span=self.room(length),
            generator=self.generator,
        )
        return self._laid_out(table, first, counts, length)

    def split(self, batch_size: int) -> tuple[int, int]:
        """The number of slices and the rows of each in a batch."""
        given = self.num_slices or self.slice_len or 1
        if batch_size % given:
            name = "num_slices" if self.num_slices is not None else "slice_len"
            raise ReplayBufferError(
                f"the batch size {batch_size} is no multiple of {name}={given}: a batch is made of whole slices"
            )
        n, length = (given, batch_size // given) if self.num_slices is not None else (batch_size // given, given)
        if not 0 <= self.burn_in < length:
            raise ReplayBufferError(f"burn_in={self.burn_in} leaves nothing of slices of {length} rows to learn from")
        return n, length

    def room(self, length: int) -> tuple[int, int]:
        """How many rows a slice may lack at each side (see `span`)."""
        left, right = (length - 1 if side is True else min(int(side), length - 1) for side in self.span)
        return left, right

    def _laid_out(
        self, table: EpisodeTable, first: Tensor, counts: Tensor, length: int
    ) -> tuple[Tensor, dict[str, Any]]:
        """Slots of the slices, one after the other, and what :meth:`complete` has to know."""
        n = first.numel()
        if (self.strict_length and not any(self.span)) or self.pad_output:
            slots = table.expand(first, counts, width=length)
            within, start, end = self._layout(n, length)
        else:
            slots = table.expand(first, counts)
            after = counts.cumsum(0)
            within = torch.arange(slots.numel()) - (after - counts).repeat_interleave(counts)
            start = within == 0
            end = torch.zeros_like(start).index_fill_(0, after - 1, True)
        info: dict[str, Any] = {_START: start, _END: end}
        if self.pad_output:
            rows = counts.repeat_interleave(length)
            info[_MASK] = within < rows  # type: ignore[index]
            info[_END] = within >= rows - 1
        if self.burn_in:
            learning = within >= self.burn_in
            info[_LEARNING] = learning & (within < rows) if self.pad_output else learning
        return slots, info

    def _layout(self, n: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """For n slices of one length: the place of each row in its slice, and whether it is the first and the last."""
        if self._places is None or self._places[:2] != (n, length):
            within = torch.arange(length).repeat(n)
            self._places = (n, length, (within, within == 0, within == length - 1))
        within, start, end = self._places[2]
        return within, start.clone(), end.clone()

    def complete(self, batch: Any, info: dict[str, Any]) -> Any:
        """Mark ends and starts of the slices in the batch."""
        start, end = info.pop(_START), info.pop(_END)
        if not isinstance(batch, TensorDictBase):
            if self.truncated_key is not None:
                info[self.truncated_key] = end  # type: ignore[index]
            return batch
        if self.truncated_key is not None:
            if self._levels is None:
                self._levels = end_levels(batch, self.truncated_key)
            mark_ends(batch, end, self._levels)
            info[self.truncated_key] = batch.get(self.truncated_key)  # type: ignore[index]
        mark_starts(batch, start, self.init_key)
        for key in (_MASK, _LEARNING):
            if key in info:
                batch.set(key, info[key])
        return batch
