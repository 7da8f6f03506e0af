"""rl-buffers: the buffers as they are used, TensorDicts in and out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _tensordicts import tensordict

from rl_buffers import (
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

FILL = 100_000


def fill(buffer: ReplayBuffer, kind: str, capacity: int) -> None:
    """Fill all rows, in pieces."""
    data = tensordict(kind, min(FILL, capacity))
    while len(buffer) < capacity:
        buffer.extend(data[: capacity - len(buffer)])


def build(
    task: str, kind: str = "state", capacity: int = 10**6, batch: int = 256, prefetch: int | None = None
) -> Callable[[], object]:
    """One repetition of a task."""
    storage = LazyTensorStorage(capacity)
    if task == "prioritized":
        return _prioritized(storage, capacity, batch)
    sampler = SliceSampler(slice_len=16) if task == "slices" else None
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=batch, prefetch=prefetch)
    fill(buffer, kind, capacity)
    if task in ("sample", "slices"):
        return buffer.sample
    if task == "extend":
        data = tensordict(kind, batch)
        return lambda: buffer.extend(data)
    if task == "add":
        row = tensordict(kind, 1)[0]
        return lambda: buffer.add(row)
    folder = Path(tempfile.gettempdir()) / "rl-bench-ours"

    def save_and_load() -> None:
        buffer.dumps(folder)
        buffer.loads(folder)

    return save_and_load


def _prioritized(storage: LazyTensorStorage, capacity: int, batch: int) -> Callable[[], object]:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=storage, batch_size=batch)
    fill(buffer, "state", capacity)
    priority = torch.rand(batch)

    def sample_and_update() -> None:
        sample = buffer.sample()
        sample.set("td_error", priority)
        buffer.update_tensordict_priority(sample)

    return sample_and_update
