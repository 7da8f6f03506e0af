"""Row gather: copies of chosen rows of many leaves in one native call, everything about the leaves prepared once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from rl_buffers.gather_reference import gather_rows_reference, slot_error
from rl_buffers.native import kernel
from rl_core.errors import NativeError

__all__ = ["RowGather", "threads_for"]

_INDEX_OUT_OF_RANGE = -1  # native/abi.h
_ONE_THREAD = 1 << 20  # bytes below which a second thread does not pay (native/pool.h)

_ARGUMENTS = (
    ctypes.c_int64,  # leaves
    ctypes.c_void_p,  # source addresses
    ctypes.c_void_p,  # row sizes in bytes
    ctypes.c_int64,  # live rows
    ctypes.c_void_p,  # index
    ctypes.c_int64,  # its length
    ctypes.c_void_p,  # target addresses
    ctypes.c_int64,  # threads
    ctypes.c_void_p,  # first bad position
)


def threads_for(n_bytes: int) -> int:
    """How many threads may copy so many bytes: ``torch.get_num_threads()`` for large copies, one for small ones."""
    return torch.get_num_threads() if n_bytes > _ONE_THREAD else 1


class RowGather:
    """Gathers rows of fixed leaves, by the C++ kernel where that is loaded and the leaves lie in main memory.

    Args:
        leaves: contiguous tensors ``[capacity, ...]`` that stay where they are.

    >>> gather = RowGather([torch.arange(6).reshape(3, 2), torch.tensor([0.5, 1.5, 2.5])])
    >>> gather(torch.tensor([2, 0]), live=3)
    [tensor([[4, 5],
            [0, 1]]), tensor([2.5000, 0.5000])]
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self.leaves = list(leaves)
        self._outputs = [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in self.leaves]
        self._rooms: tuple[int, list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]] = (-1, [])
        on_cpu = bool(self.leaves) and all(leaf.device.type == "cpu" and leaf.is_contiguous() for leaf in leaves)
        self._kernel = kernel("rl_gather_rows", *_ARGUMENTS) if on_cpu else None
        if self._kernel is None:
            return
        n = len(self.leaves)
        sizes = [leaf[:1].numel() * leaf.element_size() for leaf in self.leaves]
        self._addresses = ctypes.c_void_p * n
        self._sources = self._addresses(*(leaf.data_ptr() for leaf in self.leaves))
        self._row_bytes = (ctypes.c_int64 * n)(*sizes)
        self._bytes = sum(sizes)

    @property
    def native(self) -> bool:
        """Whether the kernel is used."""
        return self._kernel is not None

    def empty(self, n: int, pin_memory: bool = False) -> list[Tensor]:
        """Room for `n` rows of each leaf, on the CPU; in pinned memory where that is asked for (it needs CUDA)."""
        if pin_memory:
            return [torch.empty((n, *shape), dtype=dtype, pin_memory=True) for shape, dtype in self._outputs]
        if self._rooms[0] != n:
            self._rooms = (n, [((n, *shape), _strides((n, *shape)), dtype) for shape, dtype in self._outputs])
        return [torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in self._rooms[1]]  # the least

    def __call__(self, index: Tensor, live: int, out: list[Tensor] | None = None) -> list[Tensor]:
        """One tensor ``[B, ...]`` per leaf.

        Args:
            index: slots, int64 ``[B]``.
            live: how many leading rows are filled.
            out: where to put them (see :meth:`empty`); default: new tensors.

        Raises:
            ReplayBufferError: a slot is outside ``[0, live)``.
        """
        if self._kernel is None:
            return gather_rows_reference(self.leaves, index, live, out)
        if index.dtype != torch.int64 or not index.is_cpu or not index.is_contiguous():
            index = index.to(device="cpu", dtype=torch.int64).contiguous()
        n = index.numel()
        rows = self.empty(n) if out is None else out
        targets = self._addresses(*[leaf.data_ptr() for leaf in rows])
        bad = ctypes.c_int64(0)
        code = self._kernel(
            len(rows),
            self._sources,
            self._row_bytes,
            live,
            index.data_ptr(),
            n,
            targets,
            threads_for(n * self._bytes),
            ctypes.addressof(bad),
        )
        if code == _INDEX_OUT_OF_RANGE:
            raise slot_error(int(index[bad.value]), bad.value, live)
        if code != 0:
            raise NativeError(f"rl_gather_rows returned {code} (leaf {bad.value}); please report it with `rl doctor`")
        return rows


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides))
