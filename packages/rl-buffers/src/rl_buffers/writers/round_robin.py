"""RoundRobinWriter: a ring, in which new rows overwrite the oldest ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_core.buffers import Span, Storage, Writer

__all__ = ["RoundRobinWriter", "TensorDictRoundRobinWriter"]


class RoundRobinWriter(Writer):
    """Writes step i of all steps ever offered to place ``i % max_steps``.

    Data longer than the capacity keep their last steps, at the places that writing them one by one would have given.

    >>> from rl_buffers import ListStorage
    >>> writer = RoundRobinWriter()
    >>> writer.extend(8, ListStorage(5))
    [Span(start=3, stop=5, source=3), Span(start=0, stop=3, source=5)]
    >>> writer.cursor
    3
    """

    def __init__(self) -> None:
        self.cursor = 0
        """The place of the next step; once the ring is full, that of the oldest."""
        self.write_count = 0

    def extend(self, steps: int, storage: Storage, data: Any = None) -> list[Span]:
        """At most two spans: up to the end of the ring, then on from its start."""
        capacity = storage.max_steps
        skipped = max(0, steps - capacity)
        start = (self.cursor + skipped) % capacity
        first = min(steps - skipped, capacity - start)
        second = steps - skipped - first
        self.cursor = (self.cursor + steps) % capacity
        self.write_count += steps
        spans = [Span(start, start + first, skipped), Span(0, second, skipped + first)]
        return [span for span in spans if span.stop > span.start]

    def empty(self) -> None:
        """Start at place 0."""
        self.cursor = self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """Cursor and count."""
        return {"cursor": self.cursor, "write_count": self.write_count}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on at the saved place."""
        self.cursor, self.write_count = int(state_dict["cursor"]), int(state_dict["write_count"])


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The name under which TorchRL's scripts know the ring of a TensorDictReplayBuffer; the same as RoundRobinWriter.

    The slot of each row reaches the sample under "index" without being stored among the rows.
    """
