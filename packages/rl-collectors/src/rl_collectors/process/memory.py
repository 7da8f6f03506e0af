"""Memory that several processes map, and what lies where in it.

The memory has no name: it lives as long as a process maps it, so nothing is left behind however a process ends, and it
is not bounded by the size of ``/dev/shm``. Its handle travels over a pipe.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["Layout", "Leaf", "SharedMemory"]

_ALIGNMENT = 64


@dataclass(frozen=True)
class Leaf:
    """A tensor's place: ``offset`` bytes from the start."""

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """Where tensors lie in one piece of memory of ``size`` bytes."""

    leaves: tuple[Leaf, ...]
    size: int

    @classmethod
    def of(cls, tensors: Mapping[Any, Tensor]) -> Layout:
        """A layout for tensors like these, in their order.

        Example:
            >>> Layout.of({"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.bool)}).size
            68
        """
        return cls.planned({key: (value.dtype, tuple(value.shape)) for key, value in tensors.items()})

    @classmethod
    def planned(cls, leaves: Mapping[Any, tuple[torch.dtype, tuple[int, ...]]]) -> Layout:
        """A layout for tensors of these dtypes and shapes."""
        placed: list[Leaf] = []
        end = 0
        for key, (dtype, shape) in leaves.items():
            leaf = Leaf(key, dtype, shape, -(-end // _ALIGNMENT) * _ALIGNMENT)
            placed.append(leaf)
            end = leaf.offset + leaf.nbytes
        return cls(tuple(placed), max(end, 1))

    def views(self, memory: Any) -> dict[Any, Tensor]:
        """The tensors, on top of writable memory of at least ``size`` bytes."""
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        return {
            leaf.key: flat[leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype).view(leaf.shape)
            for leaf in self.leaves
        }


class SharedMemory:
    """Memory behind a file handle; mapped here, and in every process that the handle is sent to.

    Args:
        handle: of the file; kept for sending it on.
        size: bytes.
    """

    def __init__(self, handle: int, size: int) -> None:
        self.handle, self.size = handle, size
        self.memory = mmap.mmap(handle, size)  # unmapped when the last tensor on top of it is gone

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """New memory, zeroed and reserved.

        Raises:
            CollectorError: there is not as much.
        """
        try:
            handle = _anonymous_file(size)
        except OSError as error:
            raise CollectorError(
                f"{size / 2**20:.0f} MiB of shared memory for a batch cannot be had ({error}); collect fewer frames "
                "per batch, or smaller observations"
            ) from error
        return cls(handle, size)

    def send(self, pipe: Connection, pid: int) -> None:
        """Give the process at the other end of the pipe this memory; it calls :meth:`receive`."""
        reduction.send_handle(pipe, self.handle, pid)

    @classmethod
    def receive(cls, pipe: Connection, size: int) -> SharedMemory:
        """The memory that the other end sent."""
        return cls(reduction.recv_handle(pipe), size)

    def close_handle(self) -> None:
        """Close the file handle; the mapping stays."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def __del__(self) -> None:
        if getattr(self, "handle", -1) >= 0:
            os.close(self.handle)


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("rl-collectors")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        os.ftruncate(handle, size)
        if hasattr(os, "posix_fallocate"):  # else memory that is not there kills the process at the first write
            os.posix_fallocate(handle, 0, size)
    except OSError:
        os.close(handle)
        raise
    return handle
