"""Sharing a buffer between processes: the part of ReplayBuffer that is about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from rl_core.errors import ReplayBufferError

if TYPE_CHECKING:
    from rl_buffers.shared_buffer import SharedBuffer

__all__ = ["Shareable"]

B = TypeVar("B", bound="Shareable")

_NOTHING = nullcontext()


class Shareable:
    """The part of :class:`~rl_buffers.ReplayBuffer` that is about other processes."""

    _lock: AbstractContextManager[Any]
    _sharing: SharedBuffer | None = None

    if TYPE_CHECKING:

        def _lock_with(self, lock: AbstractContextManager[Any]) -> None: ...

    def share(self: B, shared: bool = True) -> B:
        """Let other processes use the buffer: hand it to them as they are forked or spawned, and all write and sample.

        Every operation is atomic between processes too. Rows move to shared memory, or stay in the files of a
        :class:`LazyMemmapStorage`; the first process that writes allocates them. The process that calls this owns them:
        it must live as long as others start to use them. Each process has a sampler of its own, which learns of the
        others' writes, with a generator of its own; the priorities of a :class:`PrioritizedSampler` are shared. A
        process that dies gives up the lock; if it was in the middle of a write, the others get an error that says so,
        until :meth:`empty` or a load.

        Args:
            shared: ``False`` leaves a buffer that is not shared as it is.

        Raises:
            ReplayBufferError: the storage, the writer or the platform cannot.
        """
        if not shared and self._sharing is not None:
            raise ReplayBufferError("a shared buffer stays shared: save it and load it into another one")
        if shared and self._sharing is None:
            from rl_buffers.buffer import ReplayBuffer
            from rl_buffers.shared_buffer import SharedBuffer

            assert isinstance(self, ReplayBuffer)
            with self._lock:
                self._sharing = SharedBuffer(self)
            self._lock_with(self._sharing.lock(self))
        return self

    def _not_shared(self) -> None:
        if self._sharing is not None:
            raise ReplayBufferError(
                "the storage and the writer of a shared buffer cannot be replaced: use a new buffer"
            )

    def _changing(self, writing: bool = False) -> AbstractContextManager[None]:
        """Around each change of rows; where processes share them, the others see that it was not finished.

        Args:
            writing: whether nothing changes but the rows at the places that the writer claims.
        """
        return _NOTHING if self._sharing is None else self._sharing.changing(writing)

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        """Around what replaces all rows: the lock, and where processes share the buffer, news of it for the others."""
        sharing = self._sharing
        if sharing is None:
            with self._lock:
                yield
            return
        sharing.pardon = True
        try:
            with self._lock, sharing.changing():
                yield
                sharing.restarted()
        finally:
            sharing.pardon = False
