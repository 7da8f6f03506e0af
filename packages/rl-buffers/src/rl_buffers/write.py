"""Ring write: spans of rows copied into the leaves of a storage in one native call, one memcpy per span and leaf."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from rl_buffers.gather import threads_for
from rl_buffers.native import kernel
from rl_core.buffers import Span
from rl_core.errors import NativeError, ReplayBufferError

__all__ = ["RowWrite", "write_rows_reference"]

_INDEX_OUT_OF_RANGE = -1  # native/abi.h

_ARGUMENTS = (
    ctypes.c_int64,  # leaves
    ctypes.c_void_p,  # target addresses
    ctypes.c_void_p,  # row sizes in bytes
    ctypes.c_int64,  # capacity
    ctypes.c_void_p,  # source addresses
    ctypes.c_int64,  # source rows
    ctypes.c_int64,  # spans
    ctypes.c_void_p,  # start, source and length of each
    ctypes.c_int64,  # threads
    ctypes.c_void_p,  # first bad span
)


class RowWrite:
    """Copies spans of rows into fixed leaves, by the C++ kernel where that is loaded and the leaves lie in main memory.

    Args:
        leaves: contiguous tensors ``[capacity, ...]`` that stay where they are.

    >>> leaf = torch.zeros(4, dtype=torch.int64)
    >>> RowWrite([leaf])([torch.tensor([1, 2, 3])], [Span(3, 4, 0), Span(0, 2, 1)])
    >>> leaf
    tensor([2, 3, 0, 1])
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self.leaves = list(leaves)
        on_cpu = bool(self.leaves) and all(leaf.device.type == "cpu" and leaf.is_contiguous() for leaf in leaves)
        self._kernel = kernel("rl_write_rows", *_ARGUMENTS) if on_cpu else None
        if self._kernel is None:
            return
        n = len(self.leaves)
        sizes = [leaf[:1].numel() * leaf.element_size() for leaf in self.leaves]
        self._targets = (ctypes.c_void_p * n)(*(leaf.data_ptr() for leaf in self.leaves))
        self._row_bytes = (ctypes.c_int64 * n)(*sizes)
        self._bytes, self._capacity = sum(sizes), self.leaves[0].shape[0]

    @property
    def native(self) -> bool:
        """Whether the kernel is used, which reads from addresses."""
        return self._kernel is not None

    def __call__(self, rows: Sequence[Tensor], spans: Sequence[Span]) -> None:
        """Write; every span is checked before anything is written.

        Args:
            rows: one tensor ``[n, ...]`` per leaf, with the leaf's dtype and row shape.
            spans: which of them go where.

        Raises:
            ReplayBufferError: a span lies outside of the leaves or the rows.
        """
        if self._kernel is None:
            write_rows_reference(self.leaves, rows, spans)
            return
        ready = [_plain(row) for row in rows]
        if ready:
            self.from_addresses([row.data_ptr() for row in ready], ready[0].shape[0], spans)

    def from_addresses(self, addresses: list[int], n: int, spans: Sequence[Span]) -> None:
        """Write from memory of `n` rows per leaf, which the caller keeps alive; only where :attr:`native`."""
        assert self._kernel is not None, "addresses are for the kernel"
        sources = array("q", addresses)
        places = array("q", [x for start, stop, source in spans for x in (start, source, stop - start)])
        bad = ctypes.c_int64(0)
        code = self._kernel(
            len(addresses),
            self._targets,
            self._row_bytes,
            self._capacity,
            sources.buffer_info()[0],
            n,
            len(spans),
            places.buffer_info()[0],
            threads_for(n * self._bytes),
            ctypes.addressof(bad),
        )
        if code == _INDEX_OUT_OF_RANGE:
            raise _span_error(spans[bad.value], self._capacity, n)
        if code != 0:
            raise NativeError(f"rl_write_rows returned {code} (leaf {bad.value}); please report it with `rl doctor`")


def _plain(row: Tensor) -> Tensor:
    """A tensor whose memory holds its values row by row, on the CPU."""
    row = row.detach().to("cpu")
    if row.is_neg() or row.is_conj():  # lazily negated or conjugated
        row = row.resolve_conj().resolve_neg()
    return row.contiguous()


def _span_error(span: Span, capacity: int, n: int) -> ReplayBufferError:
    return ReplayBufferError(f"{span} lies outside of a storage with {capacity} steps or of data with {n} steps")


def write_rows_reference(leaves: Sequence[Tensor], rows: Sequence[Tensor], spans: Sequence[Span]) -> None:
    """The same in plain torch, used without the kernel and for rows on other devices.

    >>> leaf = torch.zeros(3)
    >>> write_rows_reference([leaf], [torch.tensor([5.0, 6.0])], [Span(1, 2, 1)])
    >>> leaf
    tensor([0., 6., 0.])
    """
    for leaf, row in zip(leaves, rows, strict=True):
        for span in spans:
            capacity, n = leaf.shape[0], row.shape[0]
            if min(span) < 0 or not span.start <= span.stop <= capacity or span.source + span.stop - span.start > n:
                raise _span_error(span, capacity, n)
    with torch.no_grad():
        for leaf, row in zip(leaves, rows, strict=True):
            for start, stop, source in spans:
                leaf.narrow(0, start, stop - start).copy_(row.narrow(0, source, stop - start))
