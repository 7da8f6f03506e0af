"""RowPlan: reads the leaves of data whose structure is known already, in one pass and without building anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_buffers.rows import RowSchema

__all__ = ["RowPlan"]

_MANY = 64  # shapes of leading dimensions that are remembered


class RowPlan:
    """The quick way through the checks of a write: everything about the structure is looked up, nothing is computed.

    It says no to whatever is not plain: other containers, other tensors than contiguous ones on the CPU, another
    structure. The careful way (:meth:`rl_buffers.rows.RowSchema.check`) then takes the data or says what is wrong.

    Args:
        schema: the rows' structure, without non-tensor leaves and without complex numbers.
    """

    def __init__(self, schema: RowSchema) -> None:
        self._schema = schema
        self._trees: dict[tuple[int, ...], dict[str, Any]] = {}
        self._leaves = len(schema.leaves)

    def read(self, data: Any, lead: tuple[int, ...]) -> tuple[list[Tensor], list[int]] | None:
        """The leaves in the schema's order and their addresses, or ``None``.

        Args:
            data: what is to be written.
            lead: its leading dimensions, those of a row excluded.
        """
        tensors: list[Any] = [None] * self._leaves
        addresses = [0] * self._leaves
        if type(data) is Tensor and self._schema.is_tensor:
            data = {"": data}
        elif type(data) is not TensorDict or self._schema.is_tensor:
            return None
        tree = self._trees.get(lead)
        if tree is None:
            if len(self._trees) >= _MANY:
                self._trees.clear()
            tree = self._trees[lead] = self._tree(lead)
        return (tensors, addresses) if _walk(data, tree, tensors, addresses) else None

    def _tree(self, lead: tuple[int, ...]) -> dict[str, Any]:
        """For each name its place among the leaves, dtype and whole shape, or the tree of a container."""
        if self._schema.is_tensor:
            (spec,) = self._schema.leaves
            return {"": (0, spec.dtype, torch.Size((*lead, *spec.shape)))}
        trees: dict[tuple[str, ...], dict[str, Any]] = {}
        for path, _ in self._schema.nodes:
            trees[path] = {}
            if path:
                trees[path[:-1]][path[-1]] = trees[path]
        for place, spec in enumerate(self._schema.leaves):
            trees[spec.path[:-1]][spec.path[-1]] = (place, spec.dtype, torch.Size((*lead, *spec.shape)))
        return trees[()]


def _walk(node: Any, tree: Mapping[str, Any], tensors: list[Any], addresses: list[int]) -> bool:
    entries = node.items()
    if len(entries) != len(tree):
        return False
    for name, value in entries:
        entry = tree.get(name)
        kind = type(value)
        if kind is Tensor:
            if type(entry) is not tuple:
                return False
            place, dtype, shape = entry
            # Plain memory of the right kind, not to be read with another sign (complex numbers never come here).
            if value.dtype is not dtype or value.shape != shape or not value.is_contiguous() or not value.is_cpu:
                return False
            if value.is_neg():
                return False
            tensors[place], addresses[place] = value, value.data_ptr()
        elif kind is not TensorDict or type(entry) is not dict or not _walk(value, entry, tensors, addresses):
            return False
    return True
