"""Ragged batches made dense: the one place where a loss pads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor
from tensordict import is_tensor_collection as is_collection
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.keys import Key, as_path

__all__ = ["dense_batch", "pad_rows", "row_lengths"]


def dense_batch(batch: TensorDictBase) -> TensorDictBase:
    """The batch with each ragged entry padded on the right, to its longest row, with zeros (False for masks).

    Ragged are lazy stacks whose rows differ in shape, and nested tensors. Entries that are no tensors stay where every
    row has one value; others (chats with different numbers of turns) are left out. A batch that is dense already,
    padded on whichever side, is returned as it is.

    Args:
        batch: [*B], a TensorDict or a lazy stack.

    Returns:
        A TensorDict [*B]; nothing is written into the batch given.

    Raises:
        SpecError: rows of one entry differ in their number of dimensions.
    """
    if not _is_ragged(batch):
        return batch
    dense = _dense(batch)
    return batch.copy() if dense is None else dense


def row_lengths(batch: TensorDictBase, key: Key) -> Tensor | None:
    """The length of each row of a ragged entry.

    Args:
        batch: [*B], before it is made dense.
        key: an entry whose rows are [L].

    Returns:
        int64 [*B]; None where the entry is absent or dense.
    """
    node: Any = batch
    path = as_path(key)
    for depth, name in enumerate(path):
        inside = _inside(node)
        if isinstance(inside, LazyStackedTensorDict):
            lengths = [_lengths_below(row, path[depth:]) for row in inside.unbind(0)]
            known = [length for length in lengths if length is not None]
            return torch.stack(known) if len(known) == len(lengths) else None
        node = inside.get(name, None)
        if node is None:
            return None
    return torch.tensor([row.shape[-1] for row in node.unbind(0)]) if node.is_nested else None


def _lengths_below(row: Any, path: tuple[str, ...]) -> Tensor | None:
    """The lengths [*b] of one row of a stack, which has the batch size [*b] itself."""
    ragged = row_lengths(row, path) if row.batch_dims else None
    if ragged is not None:
        return ragged
    value = row.get(path, None)
    return None if value is None else torch.full(row.batch_size, value.shape[-1])


def pad_rows(rows: Sequence[Tensor], name: str = "an entry") -> Tensor:
    """Rows stacked, each padded with zeros behind its end to the largest size in every dimension.

    Args:
        rows: N tensors with the same number of dimensions.
        name: of the entry, for the error.

    Returns:
        [N, ...].

    Raises:
        SpecError: they have different numbers of dimensions.

    >>> pad_rows([torch.tensor([1, 2]), torch.tensor([3])])
    tensor([[1, 2],
            [3, 0]])
    """
    first = rows[0]
    if all(row.shape == first.shape for row in rows):
        return torch.stack(list(rows))
    if any(row.ndim != first.ndim for row in rows):
        raise SpecError(
            f"the rows of {name} cannot be padded to one shape: they are {[list(row.shape) for row in rows[:8]]}; give "
            "every row the same number of dimensions"
        )
    largest = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    padded = first.new_zeros((len(rows), *largest))
    for target, row in zip(padded, rows, strict=True):
        target[tuple(slice(size) for size in row.shape)] = row
    return padded


def _inside(node: Any) -> TensorDictBase:
    """The TensorDict that a tensorclass wraps; there is no public way to it that does not copy, or fails if ragged."""
    return node if isinstance(node, TensorDictBase) else node._tensordict


def _is_ragged(node: Any) -> bool:
    """Whether a node is, or holds, a lazy stack or a nested tensor."""
    if isinstance(node, Tensor):
        return node.is_nested
    if is_non_tensor(node) or not is_collection(node):
        return False
    inside = _inside(node)
    return isinstance(inside, LazyStackedTensorDict) or any(_is_ragged(value) for value in inside.values())


def _dense(node: Any) -> Any:
    """A node without ragged parts, or None where it cannot be made so."""
    if isinstance(node, Tensor):
        return torch.nested.to_padded_tensor(node, 0) if node.is_nested else node
    if is_non_tensor(node) or not is_collection(node):
        return node
    inside = _inside(node)
    if isinstance(inside, LazyStackedTensorDict):
        return _merged([_dense(row) for row in inside.unbind(0)], "")
    contents = {name: _dense(value) for name, value in inside.items()}
    kept = {name: value for name, value in contents.items() if value is not None}
    return TensorDict(kept, batch_size=node.batch_size)


def _merged(rows: list[Any], name: str) -> Any:
    """One node from the same node of every row, or None where the rows cannot be put together."""
    first = rows[0]
    if isinstance(first, Tensor):
        return pad_rows(rows, repr(name))
    if any(not is_collection(row) for row in rows):
        return None
    if any(row.batch_size != first.batch_size for row in rows):
        return None
    if is_non_tensor(first):
        return NonTensorStack(*rows)
    shared = [key for key in first.keys() if all(key in row.keys() for row in rows)]  # noqa: SIM118 (no dict)
    contents = {key: _merged([row.get(key) for row in rows], key) for key in shared}
    kept = {key: value for key, value in contents.items() if value is not None}
    return TensorDict(kept, batch_size=[len(rows), *first.batch_size])
