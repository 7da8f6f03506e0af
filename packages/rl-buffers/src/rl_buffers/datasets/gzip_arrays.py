"""Arrays in gzip-compressed ``.npy`` files: whole ones, or piece by piece where they are larger than memory."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rl_buffers.datasets.errors import DatasetError

__all__ = ["pieces_of", "read_array", "shape_of"]

_ROWS = 4096  # of a piece


def read_array(path: Path) -> Any:
    """A whole array.

    Raises:
        DatasetError: the file is absent, or damaged.
    """
    with _explained(path), gzip.open(path, "rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def shape_of(path: Path) -> tuple[int, ...]:
    """An array's shape, from the head of its file."""
    with _explained(path), gzip.open(path, "rb") as file:
        return _head(file)[0]


def pieces_of(path: Path, start: int, stop: int) -> Iterator[Any]:
    """The rows `start` to `stop` of an array, some at a time.

    Raises:
        DatasetError: the file is damaged, or ends too early.
    """
    with _explained(path), gzip.open(path, "rb") as file:
        shape, dtype = _head(file)
        size = math.prod(shape[1:]) * dtype.itemsize
        if stop > shape[0]:
            raise ValueError(f"it has {shape[0]} rows, {stop} are needed")
        for first in range(0, stop, _ROWS):
            rows = min(_ROWS, stop - first)
            data = file.read(rows * size)
            if len(data) < rows * size:
                raise EOFError(f"it ends in row {first + len(data) // max(size, 1)} of {shape[0]}")
            if first + rows > start:
                yield np.frombuffer(data, dtype).reshape(rows, *shape[1:])[max(start - first, 0) :]


def _head(file: Any) -> tuple[tuple[int, ...], Any]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(file)
    if dtype.hasobject or by_column or not shape:
        raise ValueError(f"it holds {dtype} of shape {shape}{' by column' if by_column else ''}, expected plain rows")
    return shape, dtype


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is not there") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DatasetError(
            f"{path} cannot be read, it is damaged or incomplete: {error}. Remove it and fetch it again."
        ) from error
