"""WriterEnsemble: the writers of several buffers, of which each writes to its own buffer only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from rl_core.buffers import Writer
from rl_core.errors import ReplayBufferError

__all__ = ["WriterEnsemble"]


class WriterEnsemble:
    """The writers of a :class:`~rl_buffers.ReplayBufferEnsemble`.

    Args:
        *writers: one for each buffer.

    >>> from rl_buffers import RoundRobinWriter
    >>> WriterEnsemble(RoundRobinWriter()).extend(3)
    Traceback (most recent call last):
        ...
    rl_core.errors.ReplayBufferError: rows are written to one buffer of an ensemble: ensemble[i].extend(data)
    """

    def __init__(self, *writers: Writer) -> None:
        if not writers:
            raise ReplayBufferError("a WriterEnsemble needs at least one writer")
        self.writers = writers

    def __getitem__(self, buffer: int) -> Writer:
        return self.writers[buffer]

    def __iter__(self) -> Iterator[Writer]:
        return iter(self.writers)

    def __len__(self) -> int:
        return len(self.writers)

    def extend(self, *data: Any) -> NoReturn:
        """Always an error."""
        raise ReplayBufferError("rows are written to one buffer of an ensemble: ensemble[i].extend(data)")
