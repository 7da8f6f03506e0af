"""The four operations on an episode table in C++, bound to one table's memory; without the library, their twin."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from rl_buffers.episodes.arrays import FILLED, TableArrays
from rl_buffers.episodes.twin import TwinKernels
from rl_buffers.gather_reference import slot_error
from rl_buffers.native import kernel, library
from rl_core.errors import NativeError, ReplayBufferError

__all__ = ["NativeKernels", "TableKernels", "kernels_for"]

_INDEX_OUT_OF_RANGE = -1  # native/abi.h


class TableKernels(Protocol):
    """What works on the memory of one table; positions and slots are int64 tensors on the CPU."""

    def write(self, start: int, steps: int, marks: Tensor) -> None:
        """Take note of steps ``start .. start + steps - 1`` with their rows' marks (uint8 ``[steps * lanes]``)."""

    def mark(self, slots: Tensor, marks: Tensor) -> None:
        """Give filled slots other CLOSES and OPENS marks (uint8 ``[n]``)."""

    def draw(self, words: Tensor, by_step: bool, length: int, span: tuple[int, int], strict: bool, out: Tensor) -> int:
        """Draw slices: their first slots into ``out[0]``, their lengths (0: not found) into ``out[1]``.

        Returns:
            How many were not found.
        """

    def locate(self, slots: Tensor, out: Tensor) -> None:
        """Number of the piece, rows before and rows left (itself counted) of filled slots, into ``out`` ``[3, n]``."""

    def expand(self, first: Tensor, counts: Tensor, width: int, out: Tensor) -> int:
        """Write the slots of runs of rows, padded to `width` where that is above 0; returns how many."""


def kernels_for(arrays: TableArrays) -> TableKernels:
    """The kernels of a table: in C++ where the library is loaded."""
    return TwinKernels(arrays) if library() is None else NativeKernels(arrays)


class NativeKernels:
    """The C++ kernels (native/episodes.cpp) on the memory of one table."""

    def __init__(self, arrays: TableArrays) -> None:
        table, number, address = [ctypes.c_void_p] * 6, ctypes.c_int64, ctypes.c_void_p
        self._write = _bound("rl_episodes_write", *table, number, number, address)
        self._mark = _bound("rl_episodes_mark", *table, address, number, address, address)
        self._draw = _bound("rl_episodes_draw", *table, address, *[number] * 6, address, address)
        self._locate = _bound("rl_episodes_locate", *table, address, number, *[address] * 4)
        self._expand = _bound("rl_episodes_expand", *table, address, address, number, number, address, number)
        self._arrays = arrays.all()  # kept alive
        self._table = [array.data_ptr() for array in self._arrays]

    def write(self, start: int, steps: int, marks: Tensor) -> None:
        _checked("write", self._write(*self._table, start, steps, marks.data_ptr()))

    def mark(self, slots: Tensor, marks: Tensor) -> None:
        bad = ctypes.c_int64(0)
        code = self._mark(*self._table, slots.data_ptr(), slots.numel(), marks.data_ptr(), ctypes.addressof(bad))
        if code == _INDEX_OUT_OF_RANGE:
            raise slot_error(int(slots[bad.value]), bad.value, int(self._arrays[0][FILLED]))
        _checked("mark", code)

    def draw(self, words: Tensor, by_step: bool, length: int, span: tuple[int, int], strict: bool, out: Tensor) -> int:
        n, start = words.numel(), out.data_ptr()
        return _checked(
            "draw",
            self._draw(
                *self._table,
                words.data_ptr(),
                n,
                int(by_step),
                length,
                *span,
                int(strict),
                start,
                start + 8 * n,
            ),
        )

    def locate(self, slots: Tensor, out: Tensor) -> None:
        bad, n = ctypes.c_int64(0), slots.numel()
        start = out.data_ptr()
        code = self._locate(
            *self._table, slots.data_ptr(), n, start, start + 8 * n, start + 16 * n, ctypes.addressof(bad)
        )
        if code == _INDEX_OUT_OF_RANGE:
            raise slot_error(int(slots[bad.value]), bad.value, int(self._arrays[0][FILLED]))
        _checked("locate", code)

    def expand(self, first: Tensor, counts: Tensor, width: int, out: Tensor) -> int:
        code = self._expand(
            *self._table, first.data_ptr(), counts.data_ptr(), first.numel(), width, out.data_ptr(), out.numel()
        )
        if code == _INDEX_OUT_OF_RANGE:
            raise ReplayBufferError("a run of rows begins at a slot that holds no row, or is empty")
        return _checked("expand", code)


def _bound(name: str, *arguments: Any) -> Callable[..., int]:
    function = kernel(name, *arguments)
    assert function is not None  # the library is loaded, or kernels_for would have chosen the twin
    return function


def _checked(name: str, code: int) -> int:
    if code < 0:
        raise NativeError(f"rl_episodes_{name} returned {code}; please report it with `rl doctor`")
    return code
