"""What makes one buffer of the copies that several processes hold: a lock, common numbers, news of others' writes."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from rl_buffers.samplers.prioritized import PrioritizedSampler
from rl_buffers.sharing import (
    CHANGES,
    CURSOR,
    DONE,
    DONE_PLACE,
    EVENTS,
    LOG,
    LOG_ENTRIES,
    RESTART_COUNT,
    RESTART_EVENT,
    RESTARTS,
    STEPS,
    WRITING,
    WRITTEN,
    ProcessLock,
    SharedNumbers,
)
from rl_buffers.slots import slots_of
from rl_buffers.storages.mapped import MappedStorage
from rl_buffers.writers.round_robin import RoundRobinWriter
from rl_core.buffers import Sampler, Storage
from rl_core.errors import ReplayBufferError

if TYPE_CHECKING:
    from rl_buffers.buffer import ReplayBuffer

__all__ = ["Glimpse", "SharedBuffer"]


class Glimpse(NamedTuple):
    """The common numbers before rows are read without the lock: changes, steps that are written, where they end."""

    changes: int
    done: int
    place: int


class SharedBuffer:
    """One process's side of a shared buffer.

    Rows, their number and the writer's place are in shared memory. What samplers and episode tables know of the rows is
    each process's own, except the priorities of a :class:`PrioritizedSampler`, which are shared: whenever a process
    takes the lock, it looks at what the others have done since, and tells its sampler and its tables.

    Args:
        buffer: the buffer to share.

    Raises:
        ReplayBufferError: its storage or writer cannot be shared.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        storage, writer = buffer.storage, buffer.writer
        if not isinstance(storage, MappedStorage):
            raise ReplayBufferError(
                f"a {type(storage).__name__} cannot be shared between processes: use LazyTensorStorage or "
                "LazyMemmapStorage"
            )
        if not isinstance(writer, RoundRobinWriter):
            raise ReplayBufferError(
                f"a {type(writer).__name__} cannot be shared between processes: use RoundRobinWriter"
            )
        self.numbers: SharedNumbers = storage.share()
        writer.share(self.numbers)
        self._complete()
        if isinstance(buffer.sampler, PrioritizedSampler):
            buffer.sampler.share()
        self.pardon = False
        """Whether rows that a process left half written do not matter, since all are about to be replaced."""
        self._path = storage.folder.lock_path
        self._seen = (self.numbers[EVENTS], self.numbers[RESTARTS])
        self._known = writer.write_count  # how many of the writer's steps sampler and tables know of

    def lock(self, buffer: ReplayBuffer) -> ProcessLock:
        """The lock that all processes take; whoever takes it learns of the others' writes."""
        whose = weakref.ref(buffer)  # the buffer holds the lock: a cycle would keep the shared memory

        def entered() -> None:
            taken = whose()
            if taken is not None:
                self._catch_up(taken)

        return ProcessLock(self._path, entered)

    @contextmanager
    def changing(self, writing: bool = False) -> Iterator[None]:
        """Mark that this process changes rows; the mark stays if it dies in between.

        Args:
            writing: whether nothing changes but the rows at the places that the writer claims.
        """
        numbers = self.numbers
        numbers[WRITING] = os.getpid()
        if not writing:
            numbers[CHANGES] |= 1
        try:
            yield
        finally:
            if not writing:
                numbers[CHANGES] += 1
            numbers[WRITING] = 0

    def look(self, lock: ProcessLock) -> Glimpse | None:
        """What to remember before rows are read without the lock; ``None``: take the lock.

        Raises:
            ReplayBufferError: a process ended while it changed rows.
        """
        numbers = self.numbers
        if numbers[WRITING]:
            lock.is_free()  # whose writer is gone, which shows when the lock is taken
        changes, done = numbers[CHANGES], numbers[DONE]
        return None if changes & 1 or not numbers[STEPS] else Glimpse(changes, done, numbers[DONE_PLACE])

    def unchanged(self, seen: Glimpse, slots: Tensor, storage: Storage) -> bool:
        """Whether no row at `slots` (int64 ``[B]``) may have been touched since :meth:`look`.

        A writer claims places before it copies, by its cursor and its count, and says so when it is done. So the rows
        that may be half written lie between the place where the last write that was complete at first ended, and the
        place that is the last claimed now. The kernels that copy rows keep the order of these numbers and the rows.
        """
        numbers, steps = self.numbers, storage.max_steps
        cursor = numbers[CURSOR]
        claimed = numbers[WRITTEN] - seen.done
        if numbers[CHANGES] != seen.changes or not 0 <= claimed < steps:
            return False
        touched = (cursor - seen.place) % steps
        if touched == 0:
            return claimed == 0
        places = slots.numpy() // math.prod(storage.lane_shape)
        return not bool(((places - seen.place) % steps < touched).any())

    def wrote(self, steps: int, run: int) -> None:
        """Note a write of this process; `run` rows of it follow each other in time (0: all do), see ``run_length``."""
        numbers = self.numbers
        if run:
            place = LOG + 3 * (numbers[EVENTS] % LOG_ENTRIES)
            numbers[place], numbers[place + 1], numbers[place + 2] = numbers[WRITTEN] - steps, steps, run
            numbers[EVENTS] += 1
        self._known, self._seen = numbers[WRITTEN], (numbers[EVENTS], numbers[RESTARTS])
        self._complete()

    def _complete(self) -> None:
        """Note that all places that were claimed hold their rows."""
        numbers = self.numbers
        numbers[DONE_PLACE] = numbers[CURSOR]
        numbers[DONE] = numbers[WRITTEN]

    def restarted(self) -> None:
        """Note that this process emptied the buffer, or loaded other rows."""
        numbers = self.numbers
        numbers[RESTARTS] += 1
        numbers[RESTART_EVENT], numbers[RESTART_COUNT] = numbers[EVENTS], numbers[WRITTEN] - numbers[STEPS]
        self._known, self._seen = numbers[WRITTEN], (numbers[EVENTS], numbers[RESTARTS])
        self._complete()

    def _catch_up(self, buffer: ReplayBuffer) -> None:
        """Called with the lock just taken: learn what other processes have done since this one had it."""
        numbers = self.numbers
        if numbers[WRITING]:
            if not self.pardon:
                raise ReplayBufferError(
                    f"process {numbers[WRITING]} ended while it changed rows of this shared buffer, some may be half "
                    "written: call empty(), or load a saved state"
                )
            numbers[WRITING] = 0
        now = (numbers[EVENTS], numbers[RESTARTS])
        if now == self._seen and numbers[WRITTEN] == self._known:
            return
        assert isinstance(buffer.storage, MappedStorage)
        buffer.storage.refresh()
        first = self._seen[0]
        if now[1] != self._seen[1]:
            buffer._episodes.empty()
            if _is_told(buffer.sampler):
                buffer.sampler.empty()
            first, self._known = numbers[RESTART_EVENT], numbers[RESTART_COUNT]
        if now[0] - first <= LOG_ENTRIES:
            for event in range(first, now[0]):
                begun, steps, run = (numbers[LOG + 3 * (event % LOG_ENTRIES) + i] for i in range(3))
                self._learn(buffer, begun - self._known, 0)
                self._learn(buffer, steps, run)
        elif len(buffer._episodes):
            raise ReplayBufferError(
                f"other processes wrote {now[0] - first} rollouts of several environments since this one last used the "
                f"buffer, more than the {LOG_ENTRIES} that are remembered: sample more often, or store lanes (ndim=2)"
            )
        self._learn(buffer, numbers[WRITTEN] - self._known, 0)
        self._seen = now

    def _learn(self, buffer: ReplayBuffer, steps: int, run: int) -> None:
        """Tell sampler and tables of the next `steps` steps that others wrote."""
        if steps <= 0:
            return
        storage, behind = buffer.storage, self.numbers[WRITTEN] - self._known
        writer = RoundRobinWriter()
        writer.cursor = (self.numbers[CURSOR] - behind) % storage.max_steps
        spans = writer.extend(steps, storage)
        self._known += steps
        buffer._episodes.written(storage, spans, run)
        if _is_told(buffer.sampler) and type(buffer.sampler).extend is not Sampler.extend:
            slots = slots_of(spans, steps, math.prod(storage.lane_shape))
            buffer.sampler.extend(slots[slots >= 0])


def _is_told(sampler: Sampler) -> bool:
    """Whether a sampler has to be told of others' writes; shared priorities were changed by the writer's process."""
    return not (isinstance(sampler, PrioritizedSampler) and sampler.tree.is_shared)
