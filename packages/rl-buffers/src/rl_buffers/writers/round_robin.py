"""RoundRobinWriter: a ring, in which new rows overwrite the oldest ones."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from typing import Any

from rl_buffers.sharing import CURSOR, SharedNumbers
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
        self._at: MutableSequence[int] = [0, 0]  # cursor and count; in shared memory where processes share the buffer

    @property
    def cursor(self) -> int:
        """The place of the next step; once the ring is full, that of the oldest."""
        return self._at[0]

    @cursor.setter
    def cursor(self, value: int) -> None:
        self._at[0] = value

    @property
    def write_count(self) -> int:
        """How many steps were ever offered."""
        return self._at[1]

    @write_count.setter
    def write_count(self, value: int) -> None:
        self._at[1] = value

    def share(self, numbers: SharedNumbers) -> None:
        """Keep the position among the numbers that the processes of a shared buffer have in common."""
        shared = numbers.at(CURSOR)
        shared[0], shared[1] = self._at[0], self._at[1]
        self._at = shared

    def extend(self, steps: int, storage: Storage, data: Any = None) -> list[Span]:
        """At most two spans: up to the end of the ring, then on from its start."""
        capacity, at = storage.max_steps, self._at
        skipped = steps - capacity if steps > capacity else 0
        start = (at[0] + skipped) % capacity
        stop, left = start + steps - skipped, 0
        if stop > capacity:
            stop, left = capacity, stop - capacity
        at[0] = (at[0] + steps) % capacity
        at[1] += steps
        spans = [Span(start, stop, skipped)] if stop > start else []
        if left:
            spans.append(Span(0, left, skipped + stop - start))
        return spans

    def take(self, capacity: int) -> int:
        """Claim the place of a single step, as :meth:`extend` does, and move on."""
        at = self._at
        place = at[0]
        at[0] = place + 1 if place + 1 < capacity else 0
        at[1] += 1
        return place

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
