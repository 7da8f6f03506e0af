"""ListStorage: any Python object per row, in a list."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from rl_buffers.gather_reference import check_slots
from rl_buffers.rows import RowSchema, flatten, object_rows, stack_objects
from rl_core.buffers import Block, Span, Storage
from rl_core.errors import CheckpointError, ReplayBufferError

__all__ = ["ListStorage"]


class ListStorage(Storage):
    """Keeps rows of any kind and shape: TensorDicts, tensors, trees of them, or other objects.

    TensorDicts and tensors are copied when they are written; other objects are kept by reference. Rows need not look
    alike: the buffer stacks what it can (see :func:`rl_buffers.collate.stack_rows`).

    Args:
        max_size: capacity in rows; ``None`` means unlimited.
        compilable: accepted for TorchRL's scripts; it makes no difference here.
        device: where TensorDicts and tensors are kept; default: where they come from.

    >>> storage = ListStorage(3)
    >>> storage.write(storage.prepare(["a", "b"]), [Span(0, 2, 0)])
    >>> storage.get(torch.tensor([1, 0]))
    ['b', 'a']
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        compilable: bool | None = False,
        device: torch.device | str | None = None,
    ) -> None:
        if max_size is not None and max_size < 1:
            raise ReplayBufferError(f"max_size must be at least 1, got {max_size}")
        self.max_size = sys.maxsize if max_size is None else int(max_size)
        self.device = None if device is None else torch.device(device)
        self._items: list[Any] = []

    def __len__(self) -> int:
        return len(self._items)

    def prepare(self, data: Any, row_dims: int | None = None) -> Block:
        """Split `data` into rows.

        Args:
            data: a TensorDict or tensor whose leading dimensions count rows, or a list of rows.
            row_dims: 0 takes `data` as one row; ``None`` takes all batch dimensions of a TensorDict and the first of
                a tensor.

        Raises:
            ReplayBufferError: `data` cannot be split into rows.
        """
        if row_dims == 0:
            rows = [_copied(data)]
        elif is_tensor_collection(data) or isinstance(data, Tensor):
            rows = self._split(data, row_dims)
        elif isinstance(data, (list, tuple)):
            rows = [_copied(row) for row in data]
        else:
            raise ReplayBufferError(
                f"extend takes a TensorDict, a tensor or a list of rows, got {type(data).__name__}; "
                "use add for a single row."
            )
        if self.device is not None:
            rows = [
                row.to(self.device) if isinstance(row, Tensor) or is_tensor_collection(row) else row for row in rows
            ]
        return Block(len(rows), rows)

    @staticmethod
    def _split(data: Any, row_dims: int | None) -> list[Any]:
        dims = data.ndim if isinstance(data, TensorDictBase) or not isinstance(data, Tensor) else 1
        dims = dims if row_dims is None else row_dims
        if dims < 1 or data.ndim < dims:
            raise ReplayBufferError(
                f"extend needs at least one dimension of rows, got {list(data.shape)}; use add for a single row."
            )
        flat = data if dims == 1 else data.flatten(0, dims - 1)
        return [row.clone() for row in flat.unbind(0)]

    def write(self, block: Block, spans: Sequence[Span]) -> None:
        """Put the rows that `spans` name into their slots."""
        for start, stop, source in sorted(spans):  # lower places first: a list has no gaps to write behind
            self._items[start:stop] = block.payload[source : source + stop - start]

    def get(self, index: Tensor) -> list[Any]:
        """The rows at `index`, int64 ``[B]``, as a list of B items: the stored objects, which collation copies."""
        check_slots(index, len(self._items))
        return [self._items[slot] for slot in index.tolist()]

    def set(self, index: Tensor, data: Any) -> None:
        """Overwrite the rows at `index` with those of `data`, a batch or a list."""
        check_slots(index, len(self._items))
        rows = self.prepare(data).payload
        if len(rows) != index.numel():
            raise ReplayBufferError(f"{index.numel()} slots were named, the data have {len(rows)} rows")
        for slot, row in zip(index.tolist(), rows, strict=True):
            self._items[slot] = row

    def empty(self) -> None:
        """Forget all rows."""
        self._items.clear()

    def state_dict(self) -> dict[str, Any]:
        """All rows as plain data; a TensorDict becomes its structure and its leaves."""
        return {
            "kind": type(self).__name__,
            "max_size": self.max_size,
            "items": [_encode(item) for item in self._items],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such rows as copies; the capacity must be the saved one."""
        self._check_state(state_dict)
        self._items = [_decode(item) for item in state_dict["items"]]

    def _check_state(self, state_dict: Mapping[str, Any]) -> None:
        if state_dict.get("kind") != type(self).__name__ or state_dict["max_size"] != self.max_size:
            raise CheckpointError(
                f"the state is of a {state_dict.get('kind')} with max_size={state_dict.get('max_size')}, this is a "
                f"{type(self).__name__} with max_size={self.max_size}: create it as it was saved"
            )


def _copied(row: Any) -> Any:
    """A copy of the tensors in a row; other objects are returned as they are."""
    if isinstance(row, Tensor) or is_tensor_collection(row):
        return row.clone()
    if isinstance(row, dict):
        return {key: _copied(value) for key, value in row.items()}
    if type(row) in (list, tuple):
        return type(row)(_copied(value) for value in row)
    return row


def _encode(item: Any) -> dict[str, Any]:
    if not isinstance(item, TensorDictBase):
        return {"value": item}
    flat = flatten(item)
    schema = RowSchema.of(flat, 0)
    return {
        "schema": schema.state_dict(),
        "tensors": list(flat.tensors.values()),
        "objects": [object_rows(value, 0)[0] for value in flat.objects.values()],
        "device": None if item.device is None else str(item.device),
    }


def _decode(state: Mapping[str, Any]) -> Any:
    if "value" in state:
        return _copied(state["value"])
    schema = RowSchema.from_state_dict(state["schema"])
    device = None if state["device"] is None else torch.device(state["device"])
    tensors = [leaf.clone().unsqueeze(0) for leaf in state["tensors"]]
    objects = [
        stack_objects([value], 1 + extra) for value, extra in zip(state["objects"], schema.object_dims, strict=True)
    ]
    return schema.build(tensors, objects, (1,), device)[0]
