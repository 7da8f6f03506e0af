"""Row gather: copies of chosen rows of many leaves in one native call, everything about the leaves prepared once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from rl_buffers.gather_reference import gather_rows_reference, slot_error
from rl_buffers.native import library
from rl_core.errors import NativeError

__all__ = ["RowGather"]

_INDEX_OUT_OF_RANGE = -1  # native/abi.h


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
        self._kernel = None
        on_cpu = bool(self.leaves) and all(leaf.device.type == "cpu" and leaf.is_contiguous() for leaf in leaves)
        loaded = library() if on_cpu else None
        if loaded is None:
            return
        self._kernel = loaded.rl_gather_rows
        n = len(self.leaves)
        self._addresses = ctypes.c_void_p * n
        self._sources = self._addresses(*(leaf.data_ptr() for leaf in self.leaves))
        self._row_bytes = (ctypes.c_int64 * n)(*(leaf[0].numel() * leaf.element_size() for leaf in self.leaves))
        self._outputs = [(tuple(leaf.shape[1:]), leaf.dtype) for leaf in self.leaves]

    def __call__(self, index: Tensor, live: int) -> list[Tensor]:
        """One new tensor ``[B, ...]`` per leaf.

        Args:
            index: slots, int64 ``[B]``.
            live: how many leading rows are filled.

        Raises:
            ReplayBufferError: a slot is outside ``[0, live)``.
        """
        if self._kernel is None:
            return gather_rows_reference(self.leaves, index, live)
        index = index.to(device="cpu", dtype=torch.int64).contiguous()
        n = index.numel()
        rows = [torch.empty((n, *shape), dtype=dtype) for shape, dtype in self._outputs]
        targets = self._addresses(*[out.data_ptr() for out in rows])
        bad = ctypes.c_int64(0)
        code = self._kernel(
            len(rows), self._sources, self._row_bytes, live, index.data_ptr(), n, targets, ctypes.addressof(bad)
        )
        if code == _INDEX_OUT_OF_RANGE:
            raise slot_error(int(index[bad.value]), bad.value, live)
        if code != 0:
            raise NativeError(f"rl_gather_rows returned {code} (leaf {bad.value}); please report it with `rl doctor`")
        return rows
