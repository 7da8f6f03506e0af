"""StorageEnsemble: the storages of several buffers, seen as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from rl_core.buffers import Storage
from rl_core.errors import ReplayBufferError

__all__ = ["StorageEnsemble"]


class StorageEnsemble:
    """The storages of a :class:`~rl_buffers.ReplayBufferEnsemble`; a row's place is (storage, slot).

    Args:
        *storages: one for each buffer.

    >>> import torch
    >>> from rl_buffers import TensorStorage
    >>> storages = StorageEnsemble(TensorStorage(torch.arange(3)), TensorStorage(torch.arange(10, 12)))
    >>> len(storages), storages.get(torch.tensor([[1, 0], [0, 2]]))
    (5, [tensor([10]), tensor([2])])
    """

    def __init__(self, *storages: Storage) -> None:
        if not storages:
            raise ReplayBufferError("a StorageEnsemble needs at least one storage")
        self.storages = storages

    def __getitem__(self, buffer: int) -> Storage:
        return self.storages[buffer]

    def __iter__(self) -> Iterator[Storage]:
        return iter(self.storages)

    def __len__(self) -> int:
        """The number of rows in all storages."""
        return sum(len(storage) for storage in self.storages)

    @property
    def max_size(self) -> int:
        """The capacity of all storages."""
        return sum(storage.max_size for storage in self.storages)

    def get(self, index: Tensor) -> list[Any]:
        """Copies of the rows at `index`, int64 ``[B, 2]`` of (storage, slot), as a list of B batches of one row."""
        if index.ndim != 2 or index.shape[1] != 2:
            raise ReplayBufferError(f"an index has shape [B, 2], (storage, slot), got {list(index.shape)}")
        return [self.storages[int(buffer)].get(slot.reshape(1)) for buffer, slot in index]
