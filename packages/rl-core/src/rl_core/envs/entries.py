"""Entries of one TensorDict put into another, and rows chosen from two, whatever the entries are.

Beside tensors and groups (nested TensorDicts) there are entries that change as a whole: non-tensor data, tensor classes
such as chats, and lazy stacks of rows of different length such as tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeGuard

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDictBase, is_tensorclass, lazy_stack
from tensordict.utils import is_non_tensor
from torch import Tensor

__all__ = ["choose_rows", "is_group", "put_entries"]


def is_group(value: Any, batch_dims: int) -> TypeGuard[TensorDictBase]:
    """Whether an entry of a TensorDict is a group, whose own entries count one by one.

    Args:
        value: the entry.
        batch_dims: of the TensorDict that holds it; a lazy stack along one of its dimensions is ragged rows.
    """
    if not isinstance(value, TensorDictBase) or is_non_tensor(value):
        return False
    return not (isinstance(value, LazyStackedTensorDict) and value.stack_dim < batch_dims)


def put_entries(target: TensorDictBase, source: TensorDictBase | Mapping[str, Any]) -> TensorDictBase:
    """Set every entry of the source in the target; groups keep the entries that the source's lack.

    Returns:
        The target.
    """
    dims = target.batch_dims
    for name, value in source.items():
        if type(value) is not Tensor and is_group(value, dims):
            present = target.get(name, None)
            if is_group(present, dims):
                put_entries(present, value)
                continue
        target.set(name, value)
    return target


def choose_rows(old: Any, fresh: Any, rows: Tensor) -> Any:
    """One entry with fresh rows where ``rows`` is True and old rows elsewhere, for entries that are not tensors.

    Args:
        old: the entry as it was.
        fresh: of the same batch size.
        rows: bool, of that batch size or more dimensions.
    """
    batch = fresh.batch_size
    if len(batch) == 0:
        return fresh if bool(rows.any()) else old
    wanted = rows.reshape(*batch, -1).any(-1)
    if len(batch) > 1:
        picked = [choose_rows(old[i], fresh[i], wanted[i]) for i in range(batch[0])]
    else:
        picked = [(fresh if bool(row) else old)[i] for i, row in enumerate(wanted)]
    if is_non_tensor(fresh):
        return NonTensorStack(*picked)
    return lazy_stack(_same_fields(picked))


def _same_fields(rows: list[Any]) -> list[Any]:
    """Rows cut to the fields that all of them have: an old row may hold what the policy added."""
    if not is_tensorclass(rows[0]):
        shared = set.intersection(*[set(row.keys()) for row in rows])
        return [row.select(*shared) for row in rows]
    cls = type(rows[0])
    names = [field.name for field in fields(cls)]
    names = [name for name in names if all(row.get(name, None) is not None for row in rows)]
    return [cls(**{name: row.get(name) for name in names}, batch_size=row.batch_size) for row in rows]
