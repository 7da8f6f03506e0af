"""QuickAdd: which parts of a buffer let a single row be stored without the steps that only other data need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_buffers.storages.columns import ColumnStorage
from rl_buffers.writers.round_robin import RoundRobinWriter
from rl_core.buffers import Sampler

if TYPE_CHECKING:
    from rl_buffers.buffer import ReplayBuffer

__all__ = ["QuickAdd"]


class QuickAdd:
    """What was found out about the parts that a buffer has now; a buffer with other parts needs another one.

    Args:
        buffer: the buffer.
    """

    __slots__ = ("_parts", "_ring", "_steps", "_storage", "sampler_is_told")

    def __init__(self, buffer: ReplayBuffer) -> None:
        storage, writer = buffer.storage, buffer.writer
        self._parts = (storage, writer, buffer.sampler, buffer.transform)
        self._storage = storage if isinstance(storage, ColumnStorage) and storage.ndim == 1 else None
        is_ring = isinstance(writer, RoundRobinWriter) and type(writer).extend is RoundRobinWriter.extend
        self._ring = writer if is_ring and isinstance(writer, RoundRobinWriter) else None
        self._steps = buffer.transform.transforms
        self.sampler_is_told = type(buffer.sampler).extend is not Sampler.extend
        """Whether the sampler learns of writes."""

    def is_of(self, buffer: ReplayBuffer) -> bool:
        """Whether the buffer has these parts still."""
        storage, writer, sampler, transform = self._parts
        return (
            storage is buffer.storage
            and writer is buffer.writer
            and sampler is buffer.sampler
            and transform is buffer.transform
        )

    def put(self, data: Any) -> int | None:
        """Store a row, under the buffer's lock; returns its place, or ``None`` where nothing was done."""
        storage, ring = self._storage, self._ring
        if storage is None or ring is None or len(self._steps) or not storage.put(data, ring.cursor):
            return None
        return ring.take(storage.max_size)
