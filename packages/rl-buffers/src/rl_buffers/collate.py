"""Turns a list of rows into one batch: dense where shapes agree, lazy or a plain list where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, is_tensor_collection
from torch import Tensor

from rl_core.errors import ReplayBufferError

__all__ = ["stack_rows"]


def stack_rows(rows: Sequence[Any]) -> Any:
    """One batch of the rows.

    Args:
        rows: at least one row, all of one kind.

    Returns:
        TensorDicts: a TensorDict ``[B]``, lazily stacked where shapes differ. Tensors: a tensor ``[B, ...]``. Dicts,
        lists and tuples: the same container of stacked entries. Anything else: a list of B objects.

    Raises:
        ReplayBufferError: tensors of different shapes.

    >>> stack_rows([{"x": torch.tensor(1), "name": "a"}, {"x": torch.tensor(2), "name": "b"}])
    {'x': tensor([1, 2]), 'name': ['a', 'b']}
    """
    first = rows[0]
    if isinstance(first, Tensor):
        if any(row.shape != first.shape for row in rows):
            shapes = sorted({tuple(row.shape) for row in rows})
            raise ReplayBufferError(
                f"rows of shapes {shapes} cannot be stacked: pad them, or pass collate_fn= to the buffer"
            )
        return torch.stack(list(rows))
    if is_tensor_collection(first):
        return LazyStackedTensorDict.maybe_dense_stack(list(rows), 0)
    if isinstance(first, dict):
        return {key: stack_rows([row[key] for row in rows]) for key in first}
    if type(first) in (list, tuple):
        return type(first)(stack_rows(column) for column in zip(*rows, strict=True))
    return list(rows)
