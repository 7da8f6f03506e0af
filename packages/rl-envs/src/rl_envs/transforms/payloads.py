"""Entries row by row, whether tensors or Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDictBase
from tensordict.utils import is_non_tensor
from torch import Tensor

from rl_core.keys import Key

__all__ = ["entry_rows_of", "put_rows"]


def entry_rows_of(tensordict: TensorDictBase, key: Key) -> list[Any] | None:
    """The values of an entry in the order of the flattened batch, one without a batch; None where it is absent."""
    value = tensordict.get(key, None)
    if value is None:
        return None
    dims = tensordict.batch_dims
    if is_non_tensor(value):
        value = value.tolist()
    if isinstance(value, Tensor):
        return list(value.flatten(0, dims - 1)) if dims else [value]
    return _flat(value, dims)


def _flat(payload: Any, dims: int) -> list[Any]:
    if not dims:
        return [payload]
    return [row for part in payload for row in _flat(part, dims - 1)]


def put_rows(tensordict: TensorDictBase, key: Key, rows: Sequence[Any]) -> None:
    """Write what :func:`entry_rows_of` gives back: tensors stacked, all else as non-tensor data."""
    size = tensordict.batch_size
    if isinstance(rows[0], Tensor):
        stacked = torch.stack(list(rows)).reshape(*size, *rows[0].shape)
        tensordict.set(key, stacked if tensordict.device is None else stacked.to(tensordict.device))
    elif not size:
        tensordict.set_non_tensor(key, rows[0])
    else:
        tensordict.set(key, NonTensorStack.from_list(_nested(list(rows), size)))


def _nested(rows: list[Any], size: Sequence[int]) -> list[Any]:
    if len(size) == 1:
        return rows
    step = len(rows) // size[0]
    return [_nested(rows[i * step : (i + 1) * step], size[1:]) for i in range(size[0])]
