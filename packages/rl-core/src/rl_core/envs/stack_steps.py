"""Steps, each a TensorDict or a dictionary of its entries, as one TensorDict with time as its last dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_tensorclass
from tensordict.utils import is_non_tensor
from torch import Tensor

__all__ = ["stack_entries", "stack_steps"]


def stack_steps(steps: list[TensorDictBase], dim: int, contiguous: bool | None = None) -> TensorDictBase:
    """Steps as one TensorDict, time last and named; dense where their keys and shapes agree.

    Steps whose rows have shapes of their own give a lazy stack of such rows, each of them stacked by itself.
    """
    if contiguous is None and dim and _rows_differ(steps[0]):
        by_row = zip(*(step.unbind(0) for step in steps), strict=True)
        stacked: TensorDictBase = LazyStackedTensorDict(
            *[stack_steps(list(row), dim - 1) for row in by_row], stack_dim=0
        )
    elif contiguous is False:
        stacked = LazyStackedTensorDict(*steps, stack_dim=dim)
    elif contiguous:
        stacked = LazyStackedTensorDict(*steps, stack_dim=dim).contiguous()
    else:
        dense = _dense(steps, dim)
        stacked = LazyStackedTensorDict.maybe_dense_stack(steps, dim) if dense is None else dense
    stacked.names = [*([None] * dim), "time"]
    return stacked


def stack_entries(
    rows: Sequence[Mapping[str, Any]], dim: int, batch_size: torch.Size, device: torch.device | None
) -> TensorDict | None:
    """One ``torch.stack`` for each leaf; None where the steps differ in their entries or shapes.

    Args:
        rows: the entries of each step; nested ones are TensorDicts.
        dim: where time goes.
        batch_size: of one step.
        device: of the result.
    """
    leaves: dict[str, Any] = {}
    for name, value in rows[0].items():
        try:
            column: list[Any] = [row[name] for row in rows]
            if type(value) is Tensor:
                leaves[name] = _stacked(column, dim)
            elif is_non_tensor(value) or is_tensorclass(value):
                leaves[name] = LazyStackedTensorDict.maybe_dense_stack(column, dim)
            else:
                leaves[name] = _dense(column, dim)
        except (KeyError, RuntimeError):
            return None
        if leaves[name] is None:
            return None
    if any(len(row) != len(leaves) for row in rows):
        return None
    size = torch.Size([*batch_size[:dim], len(rows), *batch_size[dim:]])
    return TensorDict(leaves, batch_size=size, device=device)


def _rows_differ(step: TensorDictBase) -> bool:
    """Whether a step is a lazy stack of rows that make no dense one."""
    if not isinstance(step, LazyStackedTensorDict) or step.stack_dim:
        return False
    shapes = [{key: getattr(row.get(key), "shape", None) for key in row.keys(True, True)} for row in step.tensordicts]
    return any(found != shapes[0] for found in shapes)


def _dense(steps: list[TensorDictBase], dim: int) -> TensorDict | None:
    first = steps[0]
    if all(step is first for step in steps):
        rows: list[dict[str, Any]] = [dict(first.items())] * len(steps)
    else:
        rows = [dict(step.items()) for step in steps]
    return stack_entries(rows, dim, first.batch_size, first.device)


def _stacked(column: list[Tensor], dim: int) -> Tensor:
    """``torch.stack``, made of one tensor where every step holds the same (a simulator's constants, passed on)."""
    first = column[0]
    if any(row is not first for row in column):
        return torch.stack(column, dim)
    repeated = first.unsqueeze(dim).expand(*first.shape[:dim], len(column), *first.shape[dim:])
    return repeated.clone(memory_format=torch.contiguous_format)
