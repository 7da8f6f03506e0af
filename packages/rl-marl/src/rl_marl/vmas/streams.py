"""``RandomStream``: random draws of one VMAS environment that no other one disturbs.

VMAS keeps the states of torch's, numpy's and Python's generators in one list for the whole process and swaps them in
around every call; environments that take turns would so change each other's draws. A stream lends the list its own
states for the time of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["RandomStream"]


class RandomStream:
    """The generators' states of one environment.

    Args:
        shared: VMAS's list of states; the stream starts as it stands now.
    """

    def __init__(self, shared: list[Any]) -> None:
        self._shared = shared
        self._states = list(shared)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Draws of VMAS come from this stream inside the block."""
        others = list(self._shared)
        self._shared[:] = self._states
        try:
            yield
        finally:
            self._states = list(self._shared)
            self._shared[:] = others
