"""ReplayBuffer: a storage, a sampler and a writer working as one, safe to use from several threads."""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from rl_buffers.collate import stack_rows
from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.in_buffer import EpisodeTables, run_length
from rl_buffers.episodes.table import EpisodeTable
from rl_buffers.inverted import Inverted
from rl_buffers.quick_add import QuickAdd
from rl_buffers.rate_limit import RateLimiter
from rl_buffers.relabel.base import RowTransform, row_transforms
from rl_buffers.samplers.consuming import ConsumingSampler
from rl_buffers.samplers.random_sampler import RandomSampler
from rl_buffers.sampling import Sampling
from rl_buffers.saved import Hook
from rl_buffers.slots import Written, as_slots, to_coordinates
from rl_buffers.storages.columns import ColumnStorage
from rl_buffers.storages.list_storage import ListStorage
from rl_buffers.trajectories import TrajectoryQueries
from rl_buffers.writers.round_robin import RoundRobinWriter
from rl_core.buffers import Sampler, Span, Storage, Writer
from rl_core.errors import ReplayBufferError
from rl_core.transforms import Compose, Transform

__all__ = ["ReplayBuffer"]

_DEFAULT_SIZE = 1000


class ReplayBuffer(Sampling, TrajectoryQueries):
    """Stores rows and gives random batches; its parts decide where rows live, which are drawn and which overwritten.

    Data may be TensorDicts, tensors, or with :class:`ListStorage` any object. Rows go in and out as copies, and the
    data that are given are never changed. Every method holds the buffer's lock, so threads see whole rows.

    Args:
        storage: where rows are kept; default ``ListStorage(1000)``.
        sampler: which rows are drawn; default :class:`RandomSampler`.
        writer: where new rows go; default :class:`RoundRobinWriter`.
        collate_fn: makes a batch from what the storage gives: a list of rows (default: stacked), or a ready batch of a
            tensor storage (default: as it is).
        pin_memory: give samples in pinned memory, where CUDA is available.
        prefetch: how many batches of :attr:`batch_size` are kept ready by threads while the caller has one; ``None`` or
            0: a sample is drawn when it is asked for. A batch that is ready is a sample of the moment it was drawn:
            the next `prefetch` batches know nothing of a write or of priorities that come now, unless the rows are
            emptied, which drops them. In what order things happen does not depend on the threads, so that seeds keep
            their meaning; without `generator` the buffer takes one of its own, seeded by torch's at the first sample.
        transform: applied to each sample, its inverse to what is written. A :class:`~rl_core.transforms.Transform` or a
            function of a TensorDict, which acts on samples only. It is put into eval mode.
        batch_size: default of :meth:`sample`, needed for iteration.
        dim_extend: the time dimension of what :meth:`extend` gets, ``storage.ndim - 1``. Where it is given and
            ``storage.ndim == 1``, dimensions after it are part of a row: ``dim_extend=0`` stores ``[N, T]`` as N rows
            of shape ``[T]``, as TorchRL does; by default they become ``N * T`` rows.
        generator: source of randomness, on the CPU; default: torch's global one (``torch.manual_seed``). Its state is
            saved with the buffer.
        shared: whether other processes use the buffer too, see :meth:`share`.
        consume_after_n_samples: how often each row may be sampled, see :class:`ConsumingSampler`, in the place of
            `sampler`.
        rate_limiter: lets writes and samples wait for each other, see :class:`RateLimiter`.

    Example:
        >>> from rl_buffers import LazyTensorStorage
        >>> from tensordict import TensorDict
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(30.0).reshape(10, 3)}, [10]))
        >>> len(buffer), buffer.sample()["x"].shape
        (10, torch.Size([4, 3]))
    """

    _default_writer: type[Writer] = RoundRobinWriter
    _quick: QuickAdd | None = None

    def __init__(
        self,
        *,
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        consume_after_n_samples: int | None = None,
        rate_limiter: RateLimiter | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ReplayBufferError(f"batch_size must be at least 1, got {batch_size}")
        self._lock: AbstractContextManager[Any] = threading.RLock()
        self._save_hooks: list[Hook] = []
        self._load_hooks: list[Hook] = []
        self._episodes = EpisodeTables()
        self._relabels: list[RowTransform] = []
        self._warn_when_full = storage is None
        self.storage: Storage = ListStorage(_DEFAULT_SIZE) if storage is None else storage
        if consume_after_n_samples is not None:
            if sampler is not None:
                raise ReplayBufferError(
                    f"consume_after_n_samples={consume_after_n_samples} chooses the sampler, leave out the "
                    f"{type(sampler).__name__}"
                )
            sampler = ConsumingSampler(consume_after_n_samples)
        self.sampler: Sampler = RandomSampler() if sampler is None else sampler
        self.writer: Writer = self._default_writer() if writer is None else writer
        if dim_extend is not None and dim_extend != self.storage.ndim - 1:
            raise ReplayBufferError(f"dim_extend must be storage.ndim - 1 = {self.storage.ndim - 1}, got {dim_extend}")
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        if isinstance(self.storage, ColumnStorage):  # it gathers into pinned memory, without a second copy
            self.storage.pin_memory = pin_memory and torch.cuda.is_available()
        self.batch_size = batch_size
        self.dim_extend = dim_extend
        self.transform = Compose()
        if transform is not None:
            self.append_transform(transform)
        self._iterator: Iterator[Any] | None = None
        self._prepare_sampling(prefetch, rate_limiter)
        self.set_rng(generator)
        self.sampler.attach(self)
        if shared:
            self.share()

    # ------------------------------------------------------------------------------------------------ writing
    def add(self, data: Any) -> Any:
        """Store one row (one step of all lanes where ``storage.ndim > 1``).

        Returns:
            Its slot as an int (int64 ``[rows, ndim]`` with lanes), or ``None`` where it was refused.
        """
        if self.rate_limiter is not None:
            self._await_insert()
        with self._lock:
            place = self._put(data)
        if place is not None:
            return place
        data = self._rows_of(data)
        if self.storage.ndim > 1:
            return self._public(self._write(data, self.storage.ndim - 1).slots)
        spans = self._write(data, 0).spans
        return spans[0].start if spans else None

    def extend(self, data: Any) -> Tensor:
        """Store many rows; a TensorDict's batch dimensions, a tensor's first, or a list's entries count them.

        Returns:
            The slot of each row in the order of the data, int64 ``[rows]``, or (step, lane) as ``[rows, ndim]`` where
            ``storage.ndim > 1``; -1 for rows that were not stored, such as those that later rows of the same call
            overwrite.

        Raises:
            ReplayBufferError: the data have another structure than the rows so far; nothing is written.
        """
        self._await_insert()
        return self._extend(data)

    def _extend(self, data: Any) -> Tensor:
        return self._public(self._write(data, None if self.dim_extend is None else self.storage.ndim).slots)

    def _write(self, data: Any, row_dims: int | None) -> Written:
        if len(self.transform):
            data = self.transform.inv(data)
        if data is None:
            return Written([], 0, 1)
        with self._lock, self._changing(writing=True):
            written = self._store(data, row_dims)
            self._stored(data, written)
            return written

    def _rows_of(self, data: Any) -> Any:
        """Data without what is no part of their rows."""
        return data

    def _put(self, data: Any) -> int | None:
        """Store a row that is as plain as those before, and give its slot; ``None``: nothing was done."""
        quick = self._quick
        if quick is None or not quick.is_of(self):
            quick = self._quick = QuickAdd(self)
        if self._sharing is not None:  # a place has to be claimed before it is written, also for a row that is refused
            return None
        place = quick.put(data)
        if place is not None and (
            quick.sampler_is_told or self._warn_when_full or self.rate_limiter is not None or len(self._episodes)
        ):
            self._note([Span(place, place + 1, 0)], 1, 0)
        return place

    def _stored(self, data: Any, written: Written) -> None:
        """What else is to be done with rows that were written, as the transforms left them, and their slots."""

    def _store(self, data: Any, row_dims: int | None) -> Written:
        block = self.storage.prepare(data, row_dims)
        spans = self.writer.extend(block.steps, self.storage, data)
        self.storage.write(block, spans)
        run = run_length(data, row_dims, self.storage) if len(self._episodes) or self._sharing is not None else 0
        return self._note(spans, block.steps, run)

    def _note(self, spans: list[Span], steps: int, run: int) -> Written:
        """Tell everything that learns of writes of one that is done."""
        self._episodes.written(self.storage, spans, run)
        if self._sharing is not None:
            self._sharing.wrote(steps, run)
        written = Written(spans, steps, math.prod(self.storage.lane_shape))
        if type(self.sampler).extend is not Sampler.extend:  # to make a slot a tensor costs as much as to copy its row
            everything = sum(span.stop - span.start for span in spans) == steps
            self.sampler.extend(written.slots if everything else written.slots[written.slots >= 0])
        if self.rate_limiter is not None:
            self.rate_limiter.inserted_rows(steps * written.lanes)
        if self._warn_when_full and self.writer.write_count > self.storage.max_size:
            self._warn_when_full = False
            warnings.warn(
                f"the default storage holds {_DEFAULT_SIZE} rows and now overwrites the oldest: "
                "pass storage=ListStorage(n) or LazyTensorStorage(n)",
                UserWarning,
                stacklevel=5,
            )
        return written

    def _public(self, slots: Tensor) -> Tensor:
        """Slots as users see them."""
        return slots if self.storage.ndim == 1 else to_coordinates(slots, self.storage.lane_shape)

    def empty(self) -> None:
        """Forget all rows, the writer's position and the sampler's; the structure of the rows stays."""
        with self._replacing():
            self.storage.empty()
            self.writer.empty()
            self._episodes.empty()
            self.sampler.empty()
            self._restart_counts()

    # ------------------------------------------------------------------------------------------------ priorities
    def update_priority(self, index: Any, priority: Any, generation: Any = None) -> None:
        """Hand raw priorities to the sampler; without effect unless it uses them.

        Args:
            index: slots, as they come with samples; negative ones are skipped.
            priority: ``[B]`` or ``[B, ...]``, or one number for all.
            generation: "index_generation" of the sample, int64 ``[B]``: rows that were overwritten since it was drawn
                are left out. Without it a priority goes to whichever row is in the slot now.
        """
        with self._lock:
            if not self.sampler.uses_priorities:
                return
            slots = as_slots(index, len(self.storage), self.storage.lane_shape)
            values = torch.as_tensor(priority)
            values = values.expand(slots.numel()) if values.ndim == 0 else values
            if generation is None:
                self.sampler.update_priority(slots, values)
            else:
                self.sampler.update_priority(slots, values, torch.as_tensor(generation))

    # ------------------------------------------------------------------------------------------------ rows
    def __len__(self) -> int:
        if self._sharing is None:
            return len(self.storage)
        with self._lock:
            return len(self.storage)

    def __getitem__(self, index: Any) -> Any:
        """Copies of rows in slot order: an int gives one row, a slice, mask or integers a batch, a key one entry.

        With lanes, ``buffer[:]`` gives ``[*lanes, steps]`` and integers are slots or (step, lane) pairs.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and all(isinstance(name, str) for name in index)):
            return self[:][index]
        with self._lock:
            lanes = self.storage.lane_shape
            rows = self.storage.get(as_slots(index, len(self.storage), lanes))
        if isinstance(index, int):
            return rows[0]
        if isinstance(rows, list):
            return stack_rows(rows) if rows else rows
        if lanes and index == slice(None):
            by_step = rows.reshape(-1, *lanes, *rows.shape[1:])
            order = (*range(1, len(lanes) + 1), 0, *range(len(lanes) + 1, by_step.ndim))
            return by_step.permute(*order).contiguous()
        return rows

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite filled rows in place; an int takes one row, other indices a batch of as many rows."""
        with self._lock, self._changing():
            slots = as_slots(index, len(self.storage), self.storage.lane_shape)
            if isinstance(index, int):
                data = data.unsqueeze(0) if isinstance(data, Tensor) or is_tensor_collection(data) else [data]
            self.storage.set(slots, data)
            self._episodes.changed(self.storage, slots)
            self.sampler.mark_update(slots)

    @property
    def write_count(self) -> int:
        """How many rows were ever offered, overwritten ones included."""
        return self.writer.write_count * math.prod(self.storage.lane_shape)

    # ------------------------------------------------------------------------------------------------ episodes
    def episodes(self, boundaries: Boundaries | None = None) -> EpisodeTable:
        """The table of the episodes among the rows, which each write keeps up to date from its first use on.

        Args:
            boundaries: what ends an episode; default: see :class:`~rl_buffers.episodes.boundaries.Boundaries`.
        """
        with self._lock:
            return self._episodes.get(Boundaries() if boundaries is None else boundaries, self.storage, self.writer)

    # ------------------------------------------------------------------------------------------------ parts
    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform at the end (last at sampling, first at writing); `invert` swaps its two directions."""
        return self.insert_transform(len(self.transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform at a place of :attr:`transform`."""
        self._drop_prefetched()
        self.transform.insert(index, Inverted(transform) if invert else transform)
        self._relabels = row_transforms(self.transform)
        for relabel in self._relabels:
            self.episodes(relabel.boundaries)  # from now on the table learns of each write
        self.transform.eval()  # running statistics must not move with what is sampled
        return self

    def set_storage(self, storage: Storage) -> None:
        """Use another storage; writer and sampler start over, and rows it already holds count as written."""
        self._not_shared()
        with self._lock:
            self.storage = storage
            self.writer.empty()
            self.writer.extend(len(storage) // math.prod(storage.lane_shape), storage)
            self._episodes.rebuild(storage, self.writer)
            self.sampler.empty()
            self._restart_counts()
            if len(storage):
                self.sampler.extend(torch.arange(len(storage)))

    def set_sampler(self, sampler: Sampler) -> None:
        """Use another sampler, which learns of the rows that are there."""
        with self._lock:
            self._drop_prefetched()
            self.sampler = sampler
            sampler.generator = self.generator
            sampler.attach(self)
            if len(self.storage):
                sampler.extend(torch.arange(len(self.storage)))

    def set_writer(self, writer: Writer) -> None:
        """Use another writer; it takes over the position of the present one."""
        self._not_shared()
        with self._lock:
            writer.load_state_dict(self.writer.state_dict())
            self.writer = writer

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw from `generator` (on the CPU), or from torch's global one."""
        if generator is not None and generator.device.type != "cpu":
            raise ReplayBufferError(
                f"the generator is on {generator.device}: slots are drawn on the CPU, use torch.Generator()"
            )
        self.generator = generator
        self.sampler.generator = generator

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # batches that were asked for are drawn first
            state = {**self.__dict__, "_lock": None, "_iterator": None, "_quick": None}
            if self.generator is not None:  # torch's cannot be sent to a spawned process
                sampler = copy.copy(self.sampler)
                sampler.generator = None
                state.update(sampler=sampler, generator=bytes(self.generator.get_state().tolist()))
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["generator"], bytes):
            generator = torch.Generator()
            generator.set_state(torch.frombuffer(bytearray(state["generator"]), dtype=torch.uint8))
            self.set_rng(generator)
        self._lock_with(threading.RLock() if self._sharing is None else self._sharing.lock(self))

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={type(getattr(self, name)).__name__}" for name in ("storage", "sampler", "writer"))
        return f"{type(self).__name__}({parts}, rows={len(self)}/{self.storage.max_size}, batch_size={self.batch_size})"
