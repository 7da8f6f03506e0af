"""LazyTensorStorage: one contiguous tensor per leaf, allocated when the first data show what a row looks like."""

from __future__ import annotations

import torch

from rl_buffers.storages.mapped import MappedStorage

__all__ = ["LazyTensorStorage"]


class LazyTensorStorage(MappedStorage):
    """Keeps TensorDict (or tensor) rows in preallocated contiguous tensors, one per leaf.

    The first write fixes keys, dtypes and shapes. With ``ndim=1`` every batch dimension of a TensorDict counts rows: a
    rollout ``[N, T]`` becomes ``N * T`` rows (TorchRL keeps N rows of shape ``[T]``; ask for that with the buffer's
    ``dim_extend=0``). With ``ndim=2`` data ``[N, T]`` are N lanes that each grow by T steps.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` rounded up to whole steps of all lanes.
        device: where the rows are kept; "auto" takes the device of the first data.
        ndim: how many leading dimensions of the data count rows.
        compilable: accepted for TorchRL's scripts; it makes no difference here.
        consolidated: likewise.
        shared_init: likewise: the first process that writes to a shared buffer allocates the rows, in any case.
        shared: keep the rows in shared memory, for a buffer of several processes (``buffer.share()`` does it too).

    Raises:
        ReplayBufferError: `max_size` or `ndim` is below 1, or the platform has no shared memory.

    >>> from rl_core.buffers import Span
    >>> from tensordict import TensorDict
    >>> storage = LazyTensorStorage(4)
    >>> block = storage.prepare(TensorDict({"x": torch.arange(6).reshape(3, 2)}, [3]))
    >>> storage.write(block, [Span(0, 3, 0)])
    >>> len(storage), storage.get(torch.tensor([2]))["x"]
    (3, tensor([[4, 5]]))
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool | None = False,
        consolidated: bool = False,
        shared_init: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__(max_size, device=None if device == "auto" else torch.device(device), ndim=ndim, folder=None)
        if shared or shared_init:
            self.share()
