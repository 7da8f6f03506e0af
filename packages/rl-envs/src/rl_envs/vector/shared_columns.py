"""Columns of one step in memory that several processes share, without a name in the file system.

The memory is an unlinked file that is sent over the workers' lines: it goes when the last process that maps it does,
however that ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_core import Columns, NonTensor, TensorSpec
from rl_core.keys import Key

__all__ = ["Place", "SharedColumns", "SharedParts", "lay_out"]

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

    @property
    def end(self) -> int:
        """Where the next place may begin."""
        return self.offset + -(-self.bytes // _ALIGNMENT) * _ALIGNMENT

    def of(self, memory: mmap.mmap) -> np.ndarray:
        """The rows ``[rows, *shape]`` in a memory."""
        shape = (self.rows, *self.shape)
        if self.dtype == "object":
            return np.empty(shape, dtype=object)
        return np.ndarray(shape, dtype=self.dtype, buffer=memory, offset=self.offset)


def lay_out(leaves: Sequence[tuple[Key, TensorSpec, bool]], start: int = 0) -> list[Place]:
    """Places for leaves one after the other.

    Args:
        leaves: key, spec with the batch's dimensions, and whether it is carried.
        start: the first byte.
    """
    places: list[Place] = []
    offset = start
    for key, spec, carried in leaves:
        shared = not isinstance(spec, NonTensor)
        dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype.name if shared else "object"
        place = Place(key, 2 if carried else 1, tuple(spec.shape), dtype, offset)
        places.append(place)
        offset = place.end
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
        self.fd, self.memory, mask = _open(places, batch, fd)
        self.rows = slice(None) if envs is None else slice(envs.start, envs.stop)
        self.arrays: dict[Key, np.ndarray] = {}
        for place in places:
            self.arrays[place.key] = place.of(self.memory)[:, self.rows]
        self.carried = [place.key for place in places if place.rows == 2]
        self.objects = [place.key for place in places if place.dtype == "object"]
        self.mask = mask[self.rows]

    def columns(self, batch_size: torch.Size) -> Columns:
        """The same memory as columns of one step."""
        return _columns(batch_size, self.arrays, self.carried)


class SharedParts:
    """The columns of environments of shapes of their own, side by side in one memory.

    Args:
        layouts: for each environment its places, from :func:`lay_out`.
        batch: ``[N, *B]``.
        fd: the memory; None makes it.
        envs: the environments that are seen; None for all.

    Attributes:
        fd: the memory's file; to be closed by the owner as soon as everyone has it.
        parts: for each environment that is seen, columns of one step.
        mask: bool ``[n, *B]``, the rows of the reset at hand.
    """

    def __init__(
        self,
        layouts: Sequence[Sequence[Place]],
        batch: tuple[int, ...],
        fd: int | None = None,
        envs: range | None = None,
    ) -> None:
        self.fd, self.memory, mask = _open([place for places in layouts for place in places], batch, fd)
        self.arrays: dict[Key, np.ndarray] = {}  # no entry has one array for all; none holds objects
        self.carried: list[Key] = []
        self.objects: list[Key] = []
        seen = range(len(layouts)) if envs is None else envs
        self.mask = mask[seen.start : seen.stop]
        self.parts = [self._part(layouts[index], torch.Size(batch[1:])) for index in seen]

    def _part(self, places: Sequence[Place], batch_size: torch.Size) -> Columns:
        arrays = {place.key: place.of(self.memory) for place in places}
        return _columns(batch_size, arrays, [place.key for place in places if place.rows == 2])


def _columns(batch_size: torch.Size, arrays: Mapping[Key, np.ndarray], carried: Sequence[Key]) -> Columns:
    """Memory that exists as columns of one step."""
    columns = Columns(1, batch_size)
    columns.arrays, columns.carried = dict(arrays), list(carried)
    columns.tensors = {key: torch.from_numpy(array) for key, array in arrays.items() if array.dtype != object}
    return columns


def _open(places: Sequence[Place], batch: tuple[int, ...], fd: int | None) -> tuple[int, mmap.mmap, np.ndarray]:
    """The file, the memory, and behind all places a mask for rows of the batch."""
    mask_at = max((place.end for place in places), default=0)
    size = max(mask_at + int(np.prod(batch)), mmap.PAGESIZE)
    file = _anonymous_file(size) if fd is None else fd
    memory = mmap.mmap(file, size)
    return file, memory, np.ndarray(batch, dtype=bool, buffer=memory, offset=mask_at)


def _anonymous_file(size: int) -> int:
    create: Any = getattr(os, "memfd_create", None)
    if create is not None:
        fd: int = create("rl_envs")
    else:
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd
