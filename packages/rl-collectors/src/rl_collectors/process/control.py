"""A few numbers that a worker and its owner both see: the worker's progress, and what it is asked to look at.

They are read once per policy call, without a system call. Each number has one writer.
"""

from __future__ import annotations

from typing import Any

__all__ = ["WORDS", "Control"]

WORDS = 8
"""Numbers per worker, 8 bytes each."""

_PROGRESS, _ATTENTION, _STOP, _CUT = range(4)


class Control:
    """The numbers of one worker.

    Args:
        memory: shared memory that holds the numbers of all workers.
        index: of this worker.
    """

    def __init__(self, memory: Any, index: int) -> None:
        self.words = memoryview(memory).cast("q")[index * WORDS : (index + 1) * WORDS]

    # ---------------------------------------------------------------- written by the worker
    def advance(self) -> None:
        """Note progress."""
        self.words[_PROGRESS] += 1

    # ---------------------------------------------------------------- written by the owner
    @property
    def progress(self) -> int:
        """Moves with every policy call and every phase of the worker's work."""
        return self.words[_PROGRESS]

    def call(self) -> None:
        """Let the worker look for messages before its next policy call."""
        self.words[_ATTENTION] += 1

    @property
    def attention(self) -> int:
        """How often the worker was called."""
        return self.words[_ATTENTION]

    def stop(self) -> None:
        """Let the worker give up what it is doing."""
        self.words[_STOP] = 1
        self.call()

    @property
    def stopped(self) -> bool:
        """Whether it shall give up."""
        return bool(self.words[_STOP])

    def cut(self, batch: int) -> None:
        """Let the worker end batch number ``batch`` with the steps it has."""
        self.words[_CUT] = batch

    @property
    def cut_at(self) -> int:
        """The last batch that shall be cut short; 0: none."""
        return self.words[_CUT]
