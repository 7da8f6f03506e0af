"""Columns of one step in memory that several processes share, without a name in the file system.

The memory is an unlinked file that is sent over the workers' lines: it goes when the last process that maps it does,
however that ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_core import Columns, NonTensor, TensorSpec
from rl_core.keys import Key

__all__ = ["Place", "SharedColumns", "lay_out"]

_ALIGNMENT = 64


@dataclass(frozen=True)
class Place:
    """Where one leaf's rows lie.

    Attributes:
        key: its key.
        rows: 2 (time t and t + 1) where it is carried, else 1.
        shape: of one row of the whole batch.
        dtype: numpy's name of it; "object" where the rows are not shared.
        offset: in bytes.
    """

    key: Key
    rows: int
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def bytes(self) -> int:
        """How many they are."""
        return 0 if self.dtype == "object" else int(np.dtype(self.dtype).itemsize * self.rows * np.prod(self.shape))


def lay_out(leaves: Sequence[tuple[Key, TensorSpec, bool]]) -> list[Place]:
    """Places for leaves one after the other.

    Args:
        leaves: key, spec with the batch's dimensions, and whether it is carried.
    """
    places: list[Place] = []
    offset = 0
    for key, spec, carried in leaves:
        shared = not isinstance(spec, NonTensor)
        dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype.name if shared else "object"
        place = Place(key, 2 if carried else 1, tuple(spec.shape), dtype, offset)
        places.append(place)
        offset += -(-place.bytes // _ALIGNMENT) * _ALIGNMENT
    return places


class SharedColumns:
    """The columns of a batch, the whole of it or some of its rows.

    Args:
        places: from :func:`lay_out`.
        fd: the memory; None makes it.
        envs: the rows that are seen, a range of environments; None for all.

    Attributes:
        fd: the memory's file; to be closed by the owner as soon as everyone has it.
        arrays: key -> ``[rows, N, ...]``.
        mask: bool ``[N, *B]``, the rows of the reset at hand.
    """

    def __init__(
        self, places: Sequence[Place], batch: tuple[int, ...], fd: int | None = None, envs: range | None = None
    ) -> None:
        last = max((place.offset + place.bytes for place in places), default=0)
        mask_at = -(-last // _ALIGNMENT) * _ALIGNMENT
        size = max(mask_at + int(np.prod(batch)), mmap.PAGESIZE)
        self.fd = _anonymous_file(size) if fd is None else fd
        self.memory = mmap.mmap(self.fd, size)
        self.rows = slice(None) if envs is None else slice(envs.start, envs.stop)
        self.arrays: dict[Key, np.ndarray] = {}
        for place in places:
            self.arrays[place.key] = self._array(place)[:, self.rows]
        self.carried = [place.key for place in places if place.rows == 2]
        self.objects = [place.key for place in places if place.dtype == "object"]
        self.mask = np.ndarray(batch, dtype=bool, buffer=self.memory, offset=mask_at)[self.rows]

    def _array(self, place: Place) -> np.ndarray:
        shape = (place.rows, *place.shape)
        if place.dtype == "object":
            return np.empty(shape, dtype=object)
        return np.ndarray(shape, dtype=place.dtype, buffer=self.memory, offset=place.offset)

    def columns(self, batch_size: torch.Size) -> Columns:
        """The same memory as columns of one step."""
        columns = Columns(1, batch_size)
        columns.arrays = dict(self.arrays)
        columns.tensors = {
            key: torch.from_numpy(array) for key, array in self.arrays.items() if key not in self.objects
        }
        columns.carried = list(self.carried)
        return columns


def _anonymous_file(size: int) -> int:
    create: Any = getattr(os, "memfd_create", None)
    if create is not None:
        fd: int = create("rl_envs")
    else:
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd
