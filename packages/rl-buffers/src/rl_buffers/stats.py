"""What a buffer counts of its use: rows written and sampled, their ratio, and how long callers had to wait."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["BufferStats"]


class BufferStats(TypedDict):
    """The answer of :meth:`rl_buffers.ReplayBuffer.stats`.

    Counts are those since the buffer was made or emptied, saved ones included; seconds are those of this process.
    """

    size: int
    """Rows stored."""
    capacity: int
    """Rows that fit."""
    inserts: int
    """Rows offered, overwritten ones included."""
    samples: int
    """Rows drawn; with processes that share the buffer, those of this process."""
    batches: int
    """Batches drawn, those that are ready included."""
    ratio: float
    """``samples / inserts``, 0 before anything was written."""
    insert_wait: float
    """Seconds that writes waited for the rate limiter."""
    sample_wait: float
    """Seconds that samples waited for the rate limiter."""
    prefetch: int
    """Batches that are ready."""
    prefetch_wait: float
    """Seconds that samples waited for batches that were not ready."""
