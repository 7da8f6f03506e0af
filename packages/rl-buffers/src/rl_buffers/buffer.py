"""ReplayBuffer: a storage, a sampler and a writer working as one, safe to use from several threads."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from rl_buffers.collate import stack_rows
from rl_buffers.inverted import Inverted
from rl_buffers.io import load_tree, save_tree
from rl_buffers.samplers.random_sampler import RandomSampler
from rl_buffers.slots import as_slots, slots_of, to_coordinates
from rl_buffers.storages.list_storage import ListStorage
from rl_buffers.writers.round_robin import RoundRobinWriter
from rl_core.buffers import Sampler, Storage, Writer
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.transforms import Compose, Transform

__all__ = ["ReplayBuffer"]

_DEFAULT_SIZE = 1000
_KIND = "ReplayBuffer"


class ReplayBuffer:
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
        prefetch: ``None`` or 0: a sample is drawn when it is asked for.
        transform: applied to each sample, its inverse to what is written. A :class:`~rl_core.transforms.Transform` or a
            function of a TensorDict, which acts on samples only. It is put into eval mode.
        batch_size: default of :meth:`sample`, needed for iteration.
        dim_extend: the time dimension of what :meth:`extend` gets, ``storage.ndim - 1``. Where it is given and
            ``storage.ndim == 1``, dimensions after it are part of a row: ``dim_extend=0`` stores ``[N, T]`` as N rows
            of shape ``[T]``, as TorchRL does; by default they become ``N * T`` rows.
        generator: source of randomness, on the CPU; default: torch's global one (``torch.manual_seed``). Its state is
            saved with the buffer.

    Example:
        >>> from rl_buffers import LazyTensorStorage
        >>> from tensordict import TensorDict
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(30.0).reshape(10, 3)}, [10]))
        >>> len(buffer), buffer.sample()["x"].shape
        (10, torch.Size([4, 3]))
    """

    _default_writer: type[Writer] = RoundRobinWriter

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
    ) -> None:
        if prefetch:
            raise ReplayBufferError(
                f"prefetch={prefetch} is not available yet: leave it out, a sample is then drawn when it is asked for"
            )
        if batch_size is not None and batch_size < 1:
            raise ReplayBufferError(f"batch_size must be at least 1, got {batch_size}")
        self._lock = threading.RLock()
        self._warn_when_full = storage is None
        self.storage: Storage = ListStorage(_DEFAULT_SIZE) if storage is None else storage
        self.sampler: Sampler = RandomSampler() if sampler is None else sampler
        self.writer: Writer = self._default_writer() if writer is None else writer
        if dim_extend is not None and dim_extend != self.storage.ndim - 1:
            raise ReplayBufferError(f"dim_extend must be storage.ndim - 1 = {self.storage.ndim - 1}, got {dim_extend}")
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.batch_size = batch_size
        self.dim_extend = dim_extend
        self.transform = Compose()
        if transform is not None:
            self.append_transform(transform)
        self._iterator: Iterator[Any] | None = None
        self.set_rng(generator)

    # ------------------------------------------------------------------------------------------------ writing
    def add(self, data: Any) -> Any:
        """Store one row (one step of all lanes where ``storage.ndim > 1``).

        Returns:
            Its slot as an int (int64 ``[rows, ndim]`` with lanes), or ``None`` where it was refused.
        """
        slots = self._write(data, self.storage.ndim - 1)
        if self.storage.ndim > 1:
            return self._public(slots)
        return int(slots[0]) if slots.numel() and slots[0] >= 0 else None

    def extend(self, data: Any) -> Tensor:
        """Store many rows; a TensorDict's batch dimensions, a tensor's first, or a list's entries count them.

        Returns:
            The slot of each row in the order of the data, int64 ``[rows]``, or (step, lane) as ``[rows, ndim]`` where
            ``storage.ndim > 1``; -1 for rows that were not stored, such as those that later rows of the same call
            overwrite.

        Raises:
            ReplayBufferError: the data have another structure than the rows so far; nothing is written.
        """
        return self._public(self._write(data, None if self.dim_extend is None else self.storage.ndim))

    def _write(self, data: Any, row_dims: int | None) -> Tensor:
        if len(self.transform):
            data = self.transform.inv(data)
        if data is None:
            return torch.empty(0, dtype=torch.int64)
        with self._lock:
            slots = self._store(data, row_dims)
            self._stored(data, slots)
            return slots

    def _stored(self, data: Any, slots: Tensor) -> None:
        """What else is to be done with rows that were written, as the transforms left them, and their slots."""

    def _store(self, data: Any, row_dims: int | None) -> Tensor:
        block = self.storage.prepare(data, row_dims)
        spans = self.writer.extend(block.steps, self.storage, data)
        self.storage.write(block, spans)
        slots = slots_of(spans, block.steps, math.prod(self.storage.lane_shape))
        self.sampler.extend(slots if len(spans) == 1 else slots[slots >= 0])
        if self._warn_when_full and self.writer.write_count > self.storage.max_size:
            self._warn_when_full = False
            warnings.warn(
                f"the default storage holds {_DEFAULT_SIZE} rows and now overwrites the oldest: "
                "pass storage=ListStorage(n) or LazyTensorStorage(n)",
                UserWarning,
                stacklevel=4,
            )
        return slots

    def _public(self, slots: Tensor) -> Tensor:
        """Slots as users see them."""
        return slots if self.storage.ndim == 1 else to_coordinates(slots, self.storage.lane_shape)

    def empty(self) -> None:
        """Forget all rows, the writer's position and the sampler's; the structure of the rows stays."""
        with self._lock:
            self.storage.empty()
            self.writer.empty()
            self.sampler.empty()

    # ------------------------------------------------------------------------------------------------ sampling
    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: the number of rows; default: the buffer's.
            return_info: also return a dict with "index" and what the sampler tells.

        Returns:
            Data ``[B, ...]``, or the pair of them and the dict.

        Raises:
            ReplayBufferError: there are no rows, or no batch size.
        """
        batch, index, info = self._draw(batch_size)
        batch = self._finish(batch)
        return (batch, {"index": index, **info}) if return_info else batch

    def _draw(self, batch_size: int | None) -> tuple[Any, Tensor, dict[str, Any]]:
        size = self.batch_size if batch_size is None else batch_size
        if size is None or size < 1:
            raise ReplayBufferError(
                f"sample needs a batch size of at least 1, got {size}: pass it here or to the buffer"
            )
        with self._lock:
            slots, info = self.sampler.sample(self.storage, size)
            rows = self.storage.get(slots)
        if self.collate_fn is not None:
            rows = self.collate_fn(rows)
        elif isinstance(rows, list):
            rows = stack_rows(rows)
        return rows, self._public(slots), info

    def _finish(self, batch: Any) -> Any:
        if len(self.transform):
            batch = self.transform(batch)
        if self.pin_memory and torch.cuda.is_available() and (isinstance(batch, Tensor) or is_tensor_collection(batch)):
            batch = batch.pin_memory()
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Batches until the sampler has gone through the rows once; without end for a sampler that never runs out."""
        if self.batch_size is None:
            raise ReplayBufferError("iteration needs a batch size: pass batch_size= to the buffer")
        with self._lock:
            self.sampler.begin_epoch()
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        while not self.sampler.ran_out:
            yield self.sample()

    def next(self) -> Any:
        """The next batch of an iteration that the buffer keeps, or ``None`` at its end; then a new one starts."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    # ------------------------------------------------------------------------------------------------ priorities
    def update_priority(self, index: Any, priority: Any) -> None:
        """Hand raw priorities to the sampler; without effect unless it uses them.

        Args:
            index: slots, as they come with samples; negative ones are skipped.
            priority: ``[B]`` or ``[B, ...]``, or one number for all.
        """
        with self._lock:
            if not self.sampler.uses_priorities:
                return
            slots = as_slots(index, len(self.storage), self.storage.lane_shape)
            values = torch.as_tensor(priority)
            self.sampler.update_priority(slots, values.expand(slots.numel()) if values.ndim == 0 else values)

    # ------------------------------------------------------------------------------------------------ rows
    def __len__(self) -> int:
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
        with self._lock:
            slots = as_slots(index, len(self.storage), self.storage.lane_shape)
            if isinstance(index, int):
                data = data.unsqueeze(0) if isinstance(data, Tensor) or is_tensor_collection(data) else [data]
            self.storage.set(slots, data)
            self.sampler.mark_update(slots)

    @property
    def write_count(self) -> int:
        """How many rows were ever offered, overwritten ones included."""
        return self.writer.write_count * math.prod(self.storage.lane_shape)

    # ------------------------------------------------------------------------------------------------ parts
    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform at the end (last at sampling, first at writing); `invert` swaps its two directions."""
        return self.insert_transform(len(self.transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform at a place of :attr:`transform`."""
        self.transform.insert(index, Inverted(transform) if invert else transform)
        self.transform.eval()  # running statistics must not move with what is sampled
        return self

    def set_storage(self, storage: Storage) -> None:
        """Use another storage; writer and sampler start over, and rows it already holds count as written."""
        with self._lock:
            self.storage = storage
            self.writer.empty()
            self.writer.extend(len(storage) // math.prod(storage.lane_shape), storage)
            self.sampler.empty()
            if len(storage):
                self.sampler.extend(torch.arange(len(storage)))

    def set_sampler(self, sampler: Sampler) -> None:
        """Use another sampler, which learns of the rows that are there."""
        with self._lock:
            self.sampler = sampler
            sampler.generator = self.generator
            if len(self.storage):
                sampler.extend(torch.arange(len(self.storage)))

    def set_writer(self, writer: Writer) -> None:
        """Use another writer; it takes over the position of the present one."""
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

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Rows, positions, transforms and generator as plain data; row tensors share memory with the storage.

        The state of torch's global generator belongs to the process and is not included.
        """
        with self._lock:
            return {
                "storage": self.storage.state_dict(),
                "sampler": {"kind": _kind(self.sampler), "state": self.sampler.state_dict()},
                "writer": {"kind": _kind(self.writer), "state": self.writer.state_dict()},
                "transform": dict(self.transform.state_dict()),
                "generator": None if self.generator is None else self.generator.get_state(),
            }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state as copies; the buffer must be built from the same parts.

        Raises:
            CheckpointError: the state is of other parts, or of another capacity.
        """
        for name, part in (("sampler", self.sampler), ("writer", self.writer)):
            if state_dict[name]["kind"] != _kind(part):
                raise CheckpointError(
                    f"the state has a {state_dict[name]['kind']} as {name}, this buffer a {_kind(part)}: "
                    "build it with the same parts"
                )
        with self._lock:
            self.storage.load_state_dict(state_dict["storage"])
            self.sampler.load_state_dict(state_dict["sampler"]["state"])
            self.writer.load_state_dict(state_dict["writer"]["state"])
            self.transform.load_state_dict(state_dict["transform"])
            self._iterator = None
            if state_dict["generator"] is not None:
                if self.generator is None:
                    self.set_rng(torch.Generator())
                assert self.generator is not None
                self.generator.set_state(state_dict["generator"].clone())

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state into folder `path` (see :mod:`rl_buffers.io`): filled rows only, no pickle, in one step.

        Raises:
            CheckpointError: a row holds something else than tensors and JSON values, or the disk refuses.
        """
        with self._lock:
            save_tree(path, self.state_dict(), _KIND)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read what :meth:`dumps` wrote; the folder may be deleted afterwards.

        Raises:
            CheckpointError: the folder is damaged, or was written by a buffer of other parts.
        """
        self.load_state_dict(load_tree(path, _KIND))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={type(getattr(self, name)).__name__}" for name in ("storage", "sampler", "writer"))
        return f"{type(self).__name__}({parts}, rows={len(self)}/{self.storage.max_size}, batch_size={self.batch_size})"


def _kind(part: Any) -> str:
    """The name of a part's class; the TensorDict variants differ in nothing that is saved."""
    return type(part).__name__.removeprefix("TensorDict")
