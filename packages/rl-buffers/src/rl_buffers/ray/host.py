"""The actor's side: a buffer that is made there, and the calls that clients make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_buffers.ray.wire import packed, unpacked

__all__ = ["BufferHost"]

_PARTS = ("storage", "sampler", "writer", "rate_limiter")


class BufferHost:
    """Holds the buffer; the actor has several threads, so that a call which waits lets others through.

    Args:
        make: the buffer's class, or another function that makes one.
        arguments: what it is called with; a storage, a sampler, a writer or a rate limiter may be a function that makes
            one here.
    """

    def __init__(self, make: Callable[..., Any], arguments: tuple[Sequence[Any], Mapping[str, Any]]) -> None:
        positional, keywords = arguments
        self.buffer: Any = None
        self.problem: Exception | None = None
        try:
            made = {name: _made(value) if name in _PARTS else value for name, value in keywords.items()}
            self.buffer = make(*positional, **made)
        except Exception as error:  # raised by ready(): an error here would end the actor, and hide what it was
            self.problem = error

    def call(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Call a method of the buffer."""
        method = getattr(self.buffer, name)
        return packed(method(*unpacked(tuple(arguments)), **unpacked(dict(keywords))))

    def read(self, name: str) -> Any:
        """Read an attribute of the buffer."""
        return packed(getattr(self.buffer, name))

    def begin_epoch(self) -> None:
        """Start an iteration."""
        self.buffer._begin_epoch()

    def next_of_epoch(self) -> tuple[bool, Any]:
        """The next batch of the iteration, or that it is over."""
        return (True, None) if self.buffer._ran_out else (False, packed(self.buffer.sample()))

    def ready(self) -> bool:
        """Answered once the buffer is there.

        Raises:
            Exception: what went wrong when it was made.
        """
        if self.problem is not None:
            raise self.problem
        return True


def _made(part: Any) -> Any:
    """A part, or what the function that stands for it makes."""
    return part() if callable(part) and not isinstance(part, Mapping) else part
