"""What a buffer counts of its use: rows written and sampled, their ratio, and how long callers had to wait."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["BufferStats", "added"]


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


def added(one: BufferStats, other: BufferStats) -> BufferStats:
    """The counts of two buffers together."""
    inserts, samples = one["inserts"] + other["inserts"], one["samples"] + other["samples"]
    return BufferStats(
        size=one["size"] + other["size"],
        capacity=one["capacity"] + other["capacity"],
        inserts=inserts,
        samples=samples,
        batches=one["batches"] + other["batches"],
        ratio=samples / inserts if inserts else 0.0,
        insert_wait=one["insert_wait"] + other["insert_wait"],
        sample_wait=one["sample_wait"] + other["sample_wait"],
        prefetch=one["prefetch"] + other["prefetch"],
        prefetch_wait=one["prefetch_wait"] + other["prefetch_wait"],
    )
