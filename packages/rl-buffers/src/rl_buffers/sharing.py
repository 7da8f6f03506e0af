"""What processes that share a buffer need: numbers in shared memory, and a lock that its owner's death releases."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, MutableSequence
from pathlib import Path
from typing import Any, overload

from rl_core.errors import ReplayBufferError

if sys.platform != "win32":
    import fcntl

__all__ = [
    "CHANGES",
    "CURSOR",
    "DONE",
    "DONE_PLACE",
    "EVENTS",
    "LOG",
    "LOG_ENTRIES",
    "RATE",
    "READY",
    "RESTARTS",
    "RESTART_COUNT",
    "RESTART_EVENT",
    "STEPS",
    "WRITING",
    "WRITTEN",
    "ProcessLock",
    "SharedNumbers",
    "lock_file",
]

READY, STEPS, CURSOR, WRITTEN, WRITING, EVENTS, RESTARTS, RESTART_EVENT, RESTART_COUNT = range(9)
"""Places in a shared buffer's numbers: whether the columns exist, how many steps are filled, the writer's cursor and
count, the process that is changing rows at present, how many events the log after :data:`LOG` has seen, how often the
buffer was emptied or loaded, and at the last time, how many events there were and the count of its first step."""

DONE, DONE_PLACE, CHANGES = 9, 10, 11
"""For those who look at rows without the lock: the writer's count and cursor as they were when its last write was
complete, and a number that is odd while rows are changed by anything else than a write, and higher afterwards."""

RATE = 14
"""Where a rate limiter keeps its two counts."""

LOG, LOG_ENTRIES = 16, 165
"""Where the log of events begins, and how many it holds: triples of a write's first count, steps and run."""

_NUMBERS = 512


class SharedNumbers(MutableSequence[int]):
    """64-bit integers in a file that processes map; it is pickled as its path, so that every copy shows the same.

    Args:
        path: the file; made, full of zeros, if it is not there.
        first: the place that is number 0 here.
    """

    def __init__(self, path: Path, first: int = 0) -> None:
        self.path, self.first = path, first
        try:
            with open(path, "a+b") as file:
                if file.seek(0, os.SEEK_END) < 8 * _NUMBERS:
                    file.truncate(8 * _NUMBERS)
                self._view = memoryview(mmap.mmap(file.fileno(), 8 * _NUMBERS)).cast("q")
        except OSError as error:
            raise ReplayBufferError(
                f"{path}, which the processes of a shared buffer have in common, cannot be opened: {error}. The "
                "process that shared the buffer must live as long as the others open it."
            ) from error

    def at(self, first: int) -> SharedNumbers:
        """The same numbers, counted from another place."""
        return SharedNumbers(self.path, first)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> MutableSequence[int]: ...
    def __getitem__(self, place: Any) -> Any:
        return self._view[self.first + place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._view[self.first + place] = value

    def __delitem__(self, place: int | slice) -> None:
        raise TypeError("shared numbers cannot be removed")

    def __len__(self) -> int:
        return _NUMBERS - self.first

    def insert(self, index: int, value: int) -> None:
        """Not possible: their number is fixed."""
        raise TypeError("shared numbers cannot be inserted")

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedNumbers, (self.path, self.first)


def lock_file(descriptor: int, wait: bool = True) -> bool:
    """Take the lock of an open file, which ends with the process at the latest; False where another process has it.

    Raises:
        ReplayBufferError: the platform has no such locks.
    """
    if sys.platform == "win32":
        raise ReplayBufferError("sharing between processes needs POSIX file locks, which Windows does not have")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_opening = threading.Lock()


class ProcessLock:
    """A reentrant lock between all threads of all processes that have it, by a lock on a file.

    A process that dies gives it up. It is pickled as its path, and a forked process opens the file for itself.

    Args:
        path: the file; made if it is not there.
        entered: called whenever the lock was free and is taken.
    """

    def __init__(self, path: Path, entered: Callable[[], None] | None = None) -> None:
        self.path, self.entered = path, entered
        self._threads, self._depth = threading.RLock(), 0
        self._process, self._file = -1, -1

    def __enter__(self) -> ProcessLock:
        if self._process != os.getpid():
            with _opening:
                if self._process != os.getpid():  # no other thread was first
                    self._open()
        self._threads.acquire()
        self._depth += 1
        if self._depth == 1:
            try:
                lock_file(self._file)
                if self.entered is not None:
                    self.entered()
            except BaseException:
                self.__exit__()
                raise
        return self

    def is_free(self) -> bool:
        """Whether nobody has the lock; where that is so, it was taken for a moment, and `entered` called."""
        if self._process != os.getpid():
            with self:
                return True
        if not self._threads.acquire(blocking=False):
            return False
        try:
            if self._depth or not lock_file(self._file, wait=False):
                return False
            self._threads.acquire()
            self._depth += 1
            try:
                if self.entered is not None:
                    self.entered()
            finally:
                self.__exit__()
        finally:
            self._threads.release()
        return True

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and sys.platform != "win32":
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._threads.release()

    def _open(self) -> None:
        """A lock belongs to one opening of the file, which a forked process would have in common with its parent."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise ReplayBufferError(
                f"the lock file {self.path} of a shared buffer cannot be opened: {error}. The process that shared the "
                "buffer must live as long as the others open it."
            ) from error
        self._threads, self._depth, self._process = threading.RLock(), 0, os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessLock, (self.path,)
