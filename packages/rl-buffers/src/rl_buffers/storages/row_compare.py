"""Comparing rows byte by byte, and putting frame stacks together: the kernels of TrajectoryStorage and their twins."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from rl_buffers.native import kernel
from rl_core.errors import NativeError

__all__ = ["StackShape", "gather_stacks", "rows_equal"]

_I, _P = ctypes.c_int64, ctypes.c_void_p
_EQUAL = (_I, _I, _I, _I, _P, _I, _I, _I, _P, _P, _I, _I, _I, _P, _P)
_STACKS = (_I, _I, _I, _I, _I, _P, _P, _I, _P, _P, _I, _P)


class StackShape:
    """How frames lie in a row: ``[blocks, frames, chunk]`` when the row is seen as that.

    Args:
        shape: the row's.
        dim: the dimension, negative, along which `frames` frames follow each other, the newest last.
        frames: how many.
        itemsize: bytes of an element.
    """

    def __init__(self, shape: tuple[int, ...], dim: int, frames: int, itemsize: int) -> None:
        self.frames = frames
        place = len(shape) + dim
        self.blocks = torch.Size(shape[:place]).numel()
        self.chunk = torch.Size(shape[place:]).numel() // frames
        self.bytes = self.chunk * itemsize
        self.shape = shape
        self.frame_shape = (*shape[:place], shape[place] // frames, *shape[place + 1 :])

    def split(self, rows: Tensor) -> Tensor:
        """Rows ``[n, *shape]`` seen as ``[n, blocks, frames, chunk]``."""
        return rows.reshape(rows.shape[0], self.blocks, self.frames, self.chunk)


def rows_equal(
    a: Tensor,
    a_index: Tensor,
    b: Tensor,
    b_index: Tensor,
    shape: StackShape | None = None,
    skip: tuple[int, int] = (0, 0),
) -> Tensor:
    """Whether pairs of rows have the same bytes: -0.0 differs from 0.0, and a NaN is equal to itself.

    Args:
        a, b: contiguous rows ``[n, ...]`` of one dtype and row shape.
        a_index, b_index: which rows to compare, int64 ``[m]``; -1 on a side counts as different.
        shape: where only some frames of each row are compared.
        skip: how many frames are left out at the beginning of a row of `a`, and of `b`; the longer skip says how many
            are compared.

    Returns:
        bool ``[m]``.
    """
    blocks, frames, chunk = (1, 1, 0) if shape is None else (shape.blocks, shape.frames, shape.bytes)
    row = a.nbytes // max(1, a.shape[0])
    length = row if shape is None else (frames - max(skip)) * chunk
    stride = row if shape is None else frames * chunk
    function = kernel("rl_rows_equal", *_EQUAL) if a.is_cpu and b.is_cpu else None
    equal = torch.empty(a_index.numel(), dtype=torch.uint8)
    if function is not None:
        first, second = a_index.contiguous(), b_index.contiguous()
        left = (a.data_ptr(), a.shape[0], row, skip[0] * chunk, first.data_ptr())
        right = (b.data_ptr(), b.shape[0], row, skip[1] * chunk, second.data_ptr())
        code = function(first.numel(), blocks, length, stride, *left, *right, equal.data_ptr())
        if code != 0:
            raise NativeError(f"rl_rows_equal returned {code}; please report it with `rl doctor`")
        return equal.bool()
    known = ((a_index >= 0) & (b_index >= 0)).to(a.device)
    left_rows = a.index_select(0, a_index.clamp(min=0).to(a.device))
    right_rows = b.index_select(0, b_index.clamp(min=0).to(b.device)).to(a.device)
    if shape is not None:
        count = frames - max(skip)
        left_rows = shape.split(left_rows).narrow(2, skip[0], count)
        right_rows = shape.split(right_rows).narrow(2, skip[1], count)
    n = left_rows.shape[0]
    if left_rows.numel() == 0:
        return known.cpu()
    left_bytes = left_rows.reshape(n, -1).contiguous().view(torch.uint8)
    right_bytes = right_rows.reshape(n, -1).contiguous().view(torch.uint8)
    return ((left_bytes == right_bytes).all(-1) & known).cpu()


def gather_stacks(
    newest: Tensor, place_of: Tensor, whole: Tensor, shape: StackShape, lanes: int, index: Tensor
) -> Tensor:
    """Frame stacks of chosen rows.

    Args:
        newest: the newest frame of every row, ``[rows, *frame_shape]``.
        place_of: int32 ``[rows]``: where a row's whole stack is in `whole`, or -1 where its older frames are the newer
            ones of the row `lanes` places before, around the ring.
        whole: whole stacks, ``[places, *shape]``.
        shape: how frames lie in a row.
        lanes: how many places further a lane's next row is.
        index: which rows, int64 ``[n]``, in range.

    Returns:
        ``[n, *shape]``.
    """
    target = torch.empty((index.numel(), *shape.shape), dtype=newest.dtype, device=newest.device)
    function = kernel("rl_gather_stacks", *_STACKS) if newest.is_cpu else None
    if function is not None:
        index = index.contiguous()
        kept = (newest.data_ptr(), place_of.data_ptr(), whole.shape[0], whole.data_ptr(), index.data_ptr())
        sizes = (newest.shape[0], lanes, shape.blocks, shape.frames, shape.bytes)
        code = function(*sizes, *kept, index.numel(), target.data_ptr())
        if code != 0:
            raise NativeError(f"rl_gather_stacks returned {code}; please report it with `rl doctor`")
        return target
    frames = newest.reshape(newest.shape[0], shape.blocks, shape.chunk)
    stacks = shape.split(whole)
    out = shape.split(target)
    row = index.to(newest.device)
    open_ = torch.ones(index.numel(), dtype=torch.bool, device=newest.device)
    for place in range(shape.frames - 1, -1, -1):
        kept_at = place_of.index_select(0, row).long()
        ends = (open_ & (kept_at >= 0)).nonzero().squeeze(-1)
        if ends.numel():
            found = stacks.index_select(0, kept_at.index_select(0, ends))
            out[ends, :, : place + 1] = found[:, :, shape.frames - 1 - place :]
        open_ &= kept_at < 0
        rest = open_.nonzero().squeeze(-1)
        out[rest, :, place] = frames.index_select(0, row.index_select(0, rest))
        row = (row - lanes) % newest.shape[0]
    return target
