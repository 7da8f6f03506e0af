"""``locked``: one process at a time, by a file that lasts as long as somebody holds or awaits it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ["locked"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock `path`; on Windows there is none.

    Raises:
        OSError: the file cannot be made.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = _acquire(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if sys.platform != "win32":
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass  # who held it has removed it: it is another file for those who come now
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
