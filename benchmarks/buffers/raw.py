"""The hand-written limits: index_select per leaf, two slice copies per leaf, a plain copy of a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _rows import rows, size


def build(task: str, kind: str = "state", capacity: int = 10**6, batch: int = 256) -> Callable[[], object]:
    """One repetition of a task without any library."""
    if task == "save_load":
        return _copy(capacity * size(kind))
    leaves = [torch.from_numpy(leaf) for leaf in rows(kind, capacity).values()]
    return _sample(leaves, batch) if task == "sample" else _extend(leaves, rows(kind, batch))


def _sample(leaves: list[torch.Tensor], batch: int) -> Callable[[], object]:
    n = leaves[0].shape[0]

    def sample() -> list[torch.Tensor]:
        index = torch.randint(n, (batch,))
        return [leaf.index_select(0, index) for leaf in leaves]

    return sample


def _extend(leaves: list[torch.Tensor], data: dict[str, object]) -> Callable[[], object]:
    new = [torch.from_numpy(leaf) for leaf in data.values()]
    n, batch, at = leaves[0].shape[0], new[0].shape[0], 0

    def extend() -> None:
        nonlocal at
        first = min(batch, n - at)
        for leaf, source in zip(leaves, new, strict=True):
            leaf[at : at + first] = source[:first]
            leaf[: batch - first] = source[first:]
        at = (at + batch) % n

    return extend


def _copy(size: int) -> Callable[[], object]:
    folder = Path(tempfile.gettempdir()) / "rl-bench-copy"
    folder.mkdir(exist_ok=True)
    (folder / "one").write_bytes(os.urandom(1 << 20) * (size >> 20))

    def copy() -> None:
        """Read and write as many bytes as a save and a load do, onto the disk."""
        shutil.copyfile(folder / "one", folder / "two")
        with open(folder / "two", "rb+") as file:
            os.fsync(file.fileno())
        (folder / "two").unlink()

    return copy
