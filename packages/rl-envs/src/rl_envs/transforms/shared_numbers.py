"""``SharedNumbers``: an array that processes share by a file, and a lock that a dying process gives back."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rl_core.errors import EnvError

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["SharedNumbers"]


class SharedNumbers:
    """``numbers``, a float64 array ``[n]`` in a file that is mapped into memory.

    Pickled by any means, it is the same memory elsewhere on this machine. The file goes with the process that made it;
    others that have it open keep their memory.

    Args:
        n: how many numbers, zero at first.

    Example:
        >>> import pickle
        >>> ours = SharedNumbers(2)
        >>> theirs = pickle.loads(pickle.dumps(ours))
        >>> theirs.numbers[1] = 3.0
        >>> ours.numbers.tolist()
        [0.0, 3.0]
    """

    def __init__(self, n: int) -> None:
        if fcntl is None:
            raise EnvError(
                "numbers shared by processes need file locks, which this system (without fcntl) does not have"
            )
        memory = "/dev/shm"
        file, path = tempfile.mkstemp(prefix="rl_envs_", dir=memory if os.access(memory, os.W_OK) else None)
        os.truncate(file, max(8 * n, 8))
        self._open(path, n, file)
        weakref.finalize(self, _remove, path, os.getpid())

    def _open(self, path: str, n: int, file: int) -> None:
        self.path, self.n, self._file = path, n, file
        self.numbers = np.frombuffer(mmap.mmap(file, max(8 * n, 8)), dtype=np.float64, count=n)
        self._threads = threading.RLock()
        self._depth = 0
        weakref.finalize(self, os.close, file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else reads or writes under this lock; it may be taken again inside of itself."""
        with self._threads:
            self._depth += 1
            if self._depth == 1:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "n": self.n}

    def __setstate__(self, state: dict[str, Any]) -> None:
        path: str = state["path"]
        if not Path(path).exists():
            raise EnvError(
                f"the statistics shared through {path} are gone: the process that made them has ended, or dropped the "
                "object; keep it for as long as workers start"
            )
        self._open(path, state["n"], os.open(path, os.O_RDWR))


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a process forked from it
        Path(path).unlink(missing_ok=True)
