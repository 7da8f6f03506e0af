"""TensorStorage: the rows of a TensorDict or tensor that exists already, such as a dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_buffers.rows import RowSchema, flatten, object_rows
from rl_buffers.storages.columns import ColumnStorage
from rl_core.errors import CheckpointError, ReplayBufferError

__all__ = ["TensorStorage"]


class TensorStorage(ColumnStorage):
    """Gives the rows of `storage` without copying them first; all of them count as filled.

    A write changes `storage` itself, where its leaves are contiguous and on `device` already; others are copied once.
    Use :class:`ImmutableDatasetWriter` to keep a dataset from being written to.

    Args:
        storage: a TensorDict or tensor whose first `ndim` dimensions count rows: ``[rows, ...]``, or with ``ndim=2``
            ``[time, lanes, ...]``, time first as the rows are kept.
        max_size: capacity in rows, at most those of `storage`; default: all of them.
        device: where the rows are kept; "auto" takes the device of the data.
        ndim: how many leading dimensions count rows.
        compilable: accepted for TorchRL's scripts; it makes no difference here.

    Raises:
        ReplayBufferError: `storage` has no row, too few dimensions, or less than `max_size` rows.

    >>> storage = TensorStorage(torch.arange(6).reshape(3, 2))
    >>> len(storage), storage.get(torch.tensor([2, 0]))
    (3, tensor([[4, 5],
            [0, 1]]))
    """

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool | None = False,
    ) -> None:
        flat = flatten(storage)
        batch = tuple(flat.nodes[()]) if flat.nodes else tuple(flat.tensors[()].shape)
        rows = torch.Size(batch[:ndim]).numel() if len(batch) >= ndim else 0
        size = rows if max_size is None else int(max_size)
        lanes = batch[1:ndim]
        per_step = torch.Size(lanes).numel()
        if rows == 0 or not 0 < size <= rows or size % per_step:
            raise ReplayBufferError(
                f"a TensorStorage with ndim={ndim} needs data of batch size [{'time, lanes' if ndim > 1 else 'rows'}] "
                f"and a max_size of at most the rows there are, in whole steps; got {list(batch)} and {max_size}"
            )
        kept = next((leaf.device for leaf in flat.tensors.values()), torch.device("cpu"))
        super().__init__(size, device=kept if device == "auto" else torch.device(device), ndim=ndim)
        steps = size // per_step
        columns = [leaf.detach()[:steps].to(self.device).contiguous() for leaf in flat.tensors.values()]
        self._use(RowSchema.of(flat, ndim), tuple(lanes), columns)
        self._objects = [object_rows(value, ndim)[:size] for value in flat.objects.values()]
        self._filled[0] = steps

    def _new_columns(self, schema: RowSchema, lanes: tuple[int, ...], steps: int) -> list[Tensor]:
        raise CheckpointError(
            "the state has rows of another structure than the data that this TensorStorage wraps: load it into a "
            "LazyTensorStorage"
        )
