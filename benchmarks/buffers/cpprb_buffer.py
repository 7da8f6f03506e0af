"""cpprb: its buffers give numpy arrays; none of its memory-saving options is used, as by the others."""

from __future__ import annotations

from collections.abc import Callable

import cpprb
import numpy as np
from _rows import rows

FILL = 100_000


def build(task: str, kind: str = "state", capacity: int = 10**6, batch: int = 256) -> Callable[[], object]:
    """One repetition of a task."""
    leaves = {name: {"shape": leaf.shape[1:], "dtype": leaf.dtype} for name, leaf in rows(kind, 1).items()}
    if task == "prioritized":
        buffer = cpprb.PrioritizedReplayBuffer(capacity, leaves, alpha=0.6)
    else:
        buffer = cpprb.ReplayBuffer(capacity, leaves)
    data = rows(kind, min(FILL, capacity))
    while buffer.get_stored_size() < capacity:
        buffer.add(**{name: leaf[: capacity - buffer.get_stored_size()] for name, leaf in data.items()})
    if task == "sample":
        return lambda: buffer.sample(batch)
    if task in ("extend", "add"):
        new = rows(kind, batch if task == "extend" else 1)
        return lambda: buffer.add(**new)
    priority = np.random.default_rng(0).random(batch)

    def sample_and_update() -> None:
        sample = buffer.sample(batch, beta=0.4)
        buffer.update_priorities(sample["indexes"], priority)

    return sample_and_update
