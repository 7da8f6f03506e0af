"""TorchRL: TensorDictReplayBuffer over LazyTensorStorage (its prioritised sampler does not load beside this torch)."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from _tensordicts import tensordict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SliceSampler

FILL = 100_000


def build(task: str, kind: str = "state", capacity: int = 10**6, batch: int = 256) -> Callable[[], object]:
    """One repetition of a task."""
    warnings.simplefilter("ignore")
    arguments = {"sampler": SliceSampler(slice_len=16, end_key=("next", "done"))} if task == "slices" else {}
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=batch, **arguments)
    data = tensordict(kind, min(FILL, capacity))
    while len(buffer) < capacity:
        buffer.extend(data[: capacity - len(buffer)].clone())
    if task in ("sample", "slices"):
        return buffer.sample
    if task == "extend":
        new = tensordict(kind, batch)
        return lambda: buffer.extend(new)
    if task == "add":
        row = tensordict(kind, 1)[0]
        return lambda: buffer.add(row)
    folder = Path(tempfile.gettempdir()) / "rl-bench-torchrl"

    def save_and_load() -> None:
        buffer.dumps(folder)
        buffer.loads(folder)

    return save_and_load
