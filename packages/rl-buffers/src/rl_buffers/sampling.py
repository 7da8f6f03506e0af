"""Giving batches: the part of ReplayBuffer that draws them when asked for, or ahead of that, and counts them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from rl_buffers.batch_state import batch_from_state, batch_state
from rl_buffers.collate import stack_rows
from rl_buffers.prefetch import Batch, Prefetcher
from rl_buffers.rate_limit import RateLimiter
from rl_buffers.samplers.random_sampler import RandomSampler
from rl_buffers.saved import Saved
from rl_buffers.sharing import RATE, ProcessLock
from rl_buffers.stats import BufferStats
from rl_buffers.storages.columns import ColumnStorage
from rl_core.errors import CheckpointError, ReplayBufferError

if TYPE_CHECKING:
    from rl_buffers.buffer import ReplayBuffer
    from rl_buffers.relabel.base import RowTransform
    from rl_buffers.shared_buffer import SharedBuffer
    from rl_core.buffers import Sampler

__all__ = ["Drawn", "Sampling"]

S = TypeVar("S", bound="Sampling")

_GLIMPSES = 2  # draws without the lock until it is taken
_counting = threading.Lock()  # of samples that are drawn without a buffer's lock


class Drawn(NamedTuple):
    """Rows that were drawn: as the storage gave them, or collated where they had to be relabelled."""

    rows: Any
    collated: bool
    slots: Tensor
    info: dict[str, Any]
    sampler: Sampler


class Sampling(Saved):
    """The part of :class:`~rl_buffers.ReplayBuffer` that gives batches."""

    batch_size: int | None
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    rate_limiter: RateLimiter | None = None
    _iterator: Iterator[Any] | None
    _prefetcher: Prefetcher | None = None
    _relabels: list[RowTransform]
    _batches = 0
    _samples = 0

    if TYPE_CHECKING:

        @property
        def write_count(self) -> int: ...
        def _public(self, slots: Tensor) -> Tensor: ...

    def _prepare_sampling(self, prefetch: int | None, rate_limiter: RateLimiter | None) -> None:
        """Take in the arguments of the constructor that are about this part, once the others are set."""
        if prefetch and self.batch_size is None:
            raise ReplayBufferError(f"prefetch={prefetch} needs a batch size: pass batch_size= to the buffer")
        self.rate_limiter = rate_limiter
        if prefetch:
            self._lock = self._prefetcher = Prefetcher(prefetch, self._lock)

    def _lock_with(self, lock: AbstractContextManager[Any]) -> None:
        """Use another lock."""
        if self._prefetcher is None:
            self._lock = lock
        else:
            self._prefetcher.inner = lock
            self._lock = self._prefetcher

    def share(self: S, shared: bool = True) -> S:
        super().share(shared)
        if self._sharing is not None and self.rate_limiter is not None:
            self.rate_limiter.share(self._sharing.numbers.at(RATE))
        return self

    share.__doc__ = Saved.share.__doc__

    # ------------------------------------------------------------------------------------------------ batches
    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: the number of rows; default: the buffer's. A buffer with prefetch gives its next batch for the
                default, and draws one at once for another size.
            return_info: also return a dict with "index" and what the sampler tells.

        Returns:
            Data ``[B, ...]``, or the pair of them and the dict.

        Raises:
            ReplayBufferError: there are no rows, or no batch size, or the rate limiter does not allow it yet.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None or size < 1:
            raise ReplayBufferError(
                f"sample needs a batch size of at least 1, got {size}: pass it here or to the buffer"
            )
        if self.rate_limiter is None:
            batch = self._next(size)
        else:
            self.rate_limiter.await_sample(size, lambda: len(self.storage), self._lock)
            try:
                batch = self._next(size)
            except BaseException:
                self.rate_limiter.withdraw_sample(size, self._lock)
                raise
        return (batch.data, batch.info) if return_info else batch.data

    def _next(self, size: int) -> Batch:
        prefetcher = self._prefetcher
        if prefetcher is None or size != self.batch_size:
            return self._make(self._draw(size))
        if self.generator is None:  # threads and the caller would draw from torch's global one in no fixed order
            with self._lock:
                self.set_rng(torch.Generator().manual_seed(int(torch.randint(2**62, ()))))
        return prefetcher.next(size, self._draw_ahead, self._make)

    def _draw_ahead(self, size: int) -> tuple[Drawn, bool]:
        with self._lock:
            return self._draw(size), self.sampler.ran_out

    def _draw(self, size: int) -> Drawn:
        drawn = None if self._sharing is None else self._glimpse(self._sharing, size)
        if drawn is not None:
            return drawn
        with self._lock:
            sampler = self.sampler
            slots, info = sampler.sample(self.storage, size)
            rows = self.storage.get(slots)
            if self._relabels:  # they read other rows, which must not change in between
                rows = self._collated(rows)
                for relabel in self._relabels:
                    rows = relabel.relabel(rows, slots, cast("ReplayBuffer", self))
            self._batches += 1
            self._samples += slots.numel()
        return Drawn(rows, bool(self._relabels), slots, info, sampler)

    def _glimpse(self, sharing: SharedBuffer, size: int) -> Drawn | None:
        """Rows drawn while other processes write, where that cannot be told from a draw under the lock.

        ``None``: it could, since a row was touched that was drawn, or since the sampler or a relabelling knows more of
        the rows than how many there are.
        """
        sampler, storage, lock = self.sampler, self.storage, self._lock
        if (
            type(sampler) is not RandomSampler
            or not isinstance(storage, ColumnStorage)
            or not storage.gathers_in_order
            or not isinstance(lock, ProcessLock)
            or self._relabels
            or len(self._episodes)
        ):
            return None
        for _ in range(_GLIMPSES):
            seen = sharing.look(lock)
            if seen is None:
                return None
            try:
                slots, info = sampler.sample(storage, size)
                rows = storage.get(slots)
            except ReplayBufferError:  # emptied meanwhile, or wrong: with the lock it shows
                return None
            if sharing.unchanged(seen, slots, storage):
                with _counting:
                    self._batches += 1
                    self._samples += slots.numel()
                return Drawn(rows, False, slots, info, sampler)
        return None

    def _make(self, drawn: Drawn) -> Batch:
        rows = drawn.rows if drawn.collated else self._collated(drawn.rows)
        info, index = drawn.info, self._public(drawn.slots)
        rows = drawn.sampler.complete(rows, info)
        return Batch(self._finish(self._labelled(rows, index, info)), {"index": index, **info})

    def _collated(self, rows: Any) -> Any:
        if self.collate_fn is not None:
            return self.collate_fn(rows)
        return stack_rows(rows) if isinstance(rows, list) else rows

    def _labelled(self, batch: Any, index: Tensor, info: dict[str, Any]) -> Any:
        """The batch with what is to be written into it of its slots and of what the sampler tells."""
        return batch

    def _finish(self, batch: Any) -> Any:
        if len(self.transform):
            batch = self.transform(batch)
        return self._pinned(batch)

    def _pinned(self, batch: Any) -> Any:
        if self.pin_memory and torch.cuda.is_available() and (isinstance(batch, Tensor) or is_tensor_collection(batch)):
            batch = batch.pin_memory()
        return batch

    # ------------------------------------------------------------------------------------------------ iteration
    def __iter__(self) -> Iterator[Any]:
        """Batches until the sampler has gone through the rows once; without end for a sampler that never runs out."""
        if self.batch_size is None:
            raise ReplayBufferError("iteration needs a batch size: pass batch_size= to the buffer")
        self._begin_epoch()
        return self._epoch()

    def _begin_epoch(self) -> None:
        with self._lock:
            self.sampler.begin_epoch()
            self._drop_prefetched()

    def _epoch(self) -> Iterator[Any]:
        while not self._ran_out:
            yield self.sample()

    @property
    def _ran_out(self) -> bool:
        """Whether the pass that iteration began is over: nothing is left to draw, and all that was drawn was given."""
        return self.sampler.ran_out and (self._prefetcher is None or self._prefetcher.exhausted)

    def next(self) -> Any:
        """The next batch of an iteration that the buffer keeps, or ``None`` at its end; then a new one starts."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    # ------------------------------------------------------------------------------------------------ prefetch
    def _drop_prefetched(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.clear()

    def close(self) -> None:
        """End the threads that prefetch; the buffer can be used on, and starts them again at the next sample."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    # ------------------------------------------------------------------------------------------------ counts
    def _await_insert(self) -> None:
        """Before a write and before its lock is taken: wait until the rate limiter allows it."""
        if self.rate_limiter is not None:
            self.rate_limiter.await_insert()

    def _restart_counts(self) -> None:
        """All rows are gone."""
        self._batches = self._samples = 0
        self._drop_prefetched()
        if self.rate_limiter is not None:
            self.rate_limiter.restart()

    def stats(self) -> BufferStats:
        """What the buffer has been used for so far, see :class:`~rl_buffers.stats.BufferStats`."""
        with self._lock:
            limiter, prefetcher, inserts = self.rate_limiter, self._prefetcher, self.write_count
            return BufferStats(
                size=len(self.storage),
                capacity=self.storage.max_size,
                inserts=inserts,
                samples=self._samples,
                batches=self._batches,
                ratio=self._samples / inserts if inserts else 0.0,
                insert_wait=0.0 if limiter is None else limiter.insert_waited,
                sample_wait=0.0 if limiter is None else limiter.sample_waited,
                prefetch=0 if prefetcher is None else prefetcher.ready,
                prefetch_wait=0.0 if prefetcher is None else prefetcher.waited,
            )

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Rows, positions, transforms, generator and prefetched batches as plain data; rows are views of the storage's.

        The state of torch's global generator belongs to the process and is not included; a buffer with prefetch has a
        generator of its own.
        """
        with self._lock:
            ready = [] if self._prefetcher is None else self._prefetcher.batches()
            limiter = self.rate_limiter
            return {
                **super().state_dict(),
                "counts": {"batches": self._batches, "samples": self._samples},
                "rate_limiter": None if limiter is None else limiter.state_dict(),
                "prefetched": [[batch_state(batch.data), batch_state(batch.info)] for batch in ready],
            }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state as copies; the buffer must be built from the same parts, but may prefetch otherwise.

        Raises:
            CheckpointError: the state is damaged, of other parts, or of another capacity; the buffer is as it was.
        """
        restore = self._sampling_from(state_dict)
        super().load_state_dict(state_dict)
        restore()

    def _sampling_from(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Read the part of a state that is about sampling, and give what takes it over."""
        try:
            ready = [
                Batch(self._pinned(batch_from_state(data)), batch_from_state(info))
                for data, info in state.get("prefetched", [])
            ]
            counts = {name: int(value) for name, value in state.get("counts", {}).items()}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the state cannot be loaded, its prefetched batches are damaged: {error!r}"
            ) from error

        def restore() -> None:
            self._batches, self._samples = counts.get("batches", 0), counts.get("samples", 0)
            if self.rate_limiter is not None and state.get("rate_limiter") is not None:
                self.rate_limiter.load_state_dict(state["rate_limiter"])
            if ready and self._prefetcher is None:  # it hands out what is there and draws nothing ahead
                self._lock = self._prefetcher = Prefetcher(0, self._lock)
            if self._prefetcher is not None:
                self._prefetcher.put(ready, self.batch_size)

        return restore
