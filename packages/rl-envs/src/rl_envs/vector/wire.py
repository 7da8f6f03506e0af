"""TensorDicts as they travel between processes: arrays by name where that says it all, else as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

__all__ = ["from_wire", "to_wire"]


class _Plain(NamedTuple):
    """A TensorDict of CPU tensors."""

    batch_size: tuple[int, ...]
    entries: dict[str, Any]


def to_wire(rows: Sequence[TensorDictBase | None]) -> list[Any]:
    """What can be pickled: on the CPU, without a graph, and no more memory than the rows' own."""
    return [None if row is None else _pack(row) for row in rows]


def _pack(row: TensorDictBase) -> Any:
    entries: dict[str, Any] = {}
    if type(row) is not TensorDict:
        return row.detach().to("cpu").clone()
    for name, value in row.items():
        if type(value) is TensorDict:
            entries[name] = _pack(value)
        elif isinstance(value, Tensor) and value.dtype != torch.bfloat16:
            entries[name] = np.ascontiguousarray(value.detach().cpu().numpy())
            if not value.ndim:
                entries[name] = entries[name].reshape(())
        else:
            entries[name] = value.detach().cpu().clone() if isinstance(value, Tensor) else value
    return _Plain(tuple(row.batch_size), entries)


def from_wire(rows: Sequence[Any]) -> list[TensorDictBase | None]:
    """The TensorDicts again."""
    return [_unpack(row) for row in rows]


def _unpack(value: Any) -> Any:
    if isinstance(value, _Plain):
        return TensorDict(
            {name: _unpack(entry) for name, entry in value.entries.items()}, batch_size=list(value.batch_size)
        )
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
