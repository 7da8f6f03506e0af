"""The C++ engine of priority trees: argument types, calls and what their error codes mean."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from rl_buffers.gather_reference import slot_error
from rl_buffers.native import kernel
from rl_buffers.trees.engine import (
    Draw,
    TreeStats,
    lock_error,
    nothing_to_draw,
    priority_error,
    write_slot_error,
)
from rl_buffers.trees.layout import CAPACITY_WORD, LIVE_WORD
from rl_core.errors import NativeError

__all__ = ["NativeEngine", "native_engine"]

# native/abi.h
_INDEX_OUT_OF_RANGE, _BAD_PRIORITY, _NOTHING_TO_DRAW, _LOCK_TIMEOUT = -1, -3, -4, -6

_INT, _REAL, _ADDRESS = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_TREE = (_ADDRESS, _INT)  # memory, words
_KERNELS: dict[str, tuple[type, ...]] = {
    "rl_tree_write": (*_TREE, _INT, _ADDRESS, _REAL, _REAL, _INT, _ADDRESS),
    "rl_tree_update": (*_TREE, _INT, _ADDRESS, _ADDRESS, _ADDRESS, _REAL, _REAL, _ADDRESS),
    "rl_tree_sample": (*_TREE, _INT, _INT, _INT, _REAL, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS),
    "rl_tree_stats": (*_TREE, _ADDRESS),
    "rl_tree_read": (*_TREE, _INT, _ADDRESS, _ADDRESS),
    "rl_tree_clear": _TREE,
    "rl_tree_load": (*_TREE, _INT, _ADDRESS, _ADDRESS, _REAL, _ADDRESS),
}


class NativeEngine:
    """Calls the kernels of native/trees.cpp.

    Addresses are asked for at each call: a tensor that is moved to shared memory gets another one.
    """

    def __init__(self, kernels: dict[str, Callable[..., int]]) -> None:
        self._write, self._update, self._sample = (kernels[f"rl_tree_{name}"] for name in ("write", "update", "sample"))
        self._stats, self._read, self._clear, self._load = (
            kernels[f"rl_tree_{name}"] for name in ("stats", "read", "clear", "load")
        )

    def write(self, memory: Tensor, index: Tensor, alpha: float, eps: float, within: bool) -> None:
        bad = ctypes.c_int64(0)
        code = self._write(
            memory.data_ptr(), memory.numel(), index.numel(), index.data_ptr(), alpha, eps, within,
            ctypes.addressof(bad),
        )  # fmt: skip
        if code == _INDEX_OUT_OF_RANGE:
            raise write_slot_error(int(index[bad.value]), bad.value, int(memory[CAPACITY_WORD]))
        _check(code, "rl_tree_write")

    def update(
        self, memory: Tensor, index: Tensor, raw: Tensor, generation: Tensor | None, alpha: float, eps: float
    ) -> int:
        bad = ctypes.c_int64(0)
        code = self._update(
            memory.data_ptr(), memory.numel(), index.numel(), index.data_ptr(), raw.data_ptr(),
            None if generation is None else generation.data_ptr(), alpha, eps, ctypes.addressof(bad),
        )  # fmt: skip
        if code == _INDEX_OUT_OF_RANGE:
            word = CAPACITY_WORD if generation is not None else LIVE_WORD
            raise slot_error(int(index[bad.value]), bad.value, int(memory[word]))
        if code == _BAD_PRIORITY:
            raise priority_error(float(raw[bad.value]), bad.value, int(index[bad.value]))
        _check(code, "rl_tree_update")
        return code

    def sample(self, memory: Tensor, n: int, seed: int, stratified: bool, beta: float, dtype: torch.dtype) -> Draw:
        index, generation = torch.empty(n, dtype=torch.int64), torch.empty(n, dtype=torch.int64)
        weight = torch.empty(n, dtype=torch.float64)
        single = torch.empty(n, dtype=torch.float32) if dtype == torch.float32 else None
        code = self._sample(
            memory.data_ptr(), memory.numel(), n, seed, stratified, beta, index.data_ptr(), weight.data_ptr(),
            None if single is None else single.data_ptr(), generation.data_ptr(),
        )  # fmt: skip
        if code == _NOTHING_TO_DRAW:
            raise nothing_to_draw(int(memory[LIVE_WORD]))
        if code != 0:
            _check(code, "rl_tree_sample")
        return Draw(index, weight.to(dtype) if single is None else single, generation)

    def stats(self, memory: Tensor) -> TreeStats:
        out = (ctypes.c_double * 4)()
        live = self._stats(memory.data_ptr(), memory.numel(), ctypes.addressof(out))
        _check(live, "rl_tree_stats")
        return TreeStats(out[0], out[1], out[2], out[3], live)

    def read(self, memory: Tensor, n: int) -> tuple[Tensor, Tensor]:
        priority, generation = torch.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.int64)
        found = self._read(memory.data_ptr(), memory.numel(), n, priority.data_ptr(), generation.data_ptr())
        _check(found, "rl_tree_read")
        return priority[:found], generation[:found]

    def clear(self, memory: Tensor) -> None:
        _check(self._clear(memory.data_ptr(), memory.numel()), "rl_tree_clear")

    def load(self, memory: Tensor, priority: Tensor, generation: Tensor, largest_ever: float) -> None:
        bad = ctypes.c_int64(0)
        code = self._load(
            memory.data_ptr(), memory.numel(), priority.numel(), priority.data_ptr(), generation.data_ptr(),
            largest_ever, ctypes.addressof(bad),
        )  # fmt: skip
        if code == _BAD_PRIORITY:
            raise priority_error(float(priority[bad.value]), bad.value, bad.value)
        _check(code, "rl_tree_load")


def _check(code: int, name: str) -> None:
    if code == _LOCK_TIMEOUT:
        raise lock_error()
    if code < 0:
        raise NativeError(f"{name} returned {code} (native/abi.h); please report it with `rl doctor`")


def native_engine() -> NativeEngine | None:
    """The kernels, or ``None`` where the twin is to be used."""
    kernels = {name: kernel(name, *arguments) for name, arguments in _KERNELS.items()}
    found = {name: function for name, function in kernels.items() if function is not None}
    return NativeEngine(found) if len(found) == len(_KERNELS) else None
