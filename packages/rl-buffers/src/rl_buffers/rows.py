"""The structure of a storage's rows: found at the first write, checked at each later one, rebuilt at each sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from rl_core.errors import ReplayBufferError
from rl_core.keys import as_key

__all__ = ["FlatRows", "LeafSpec", "RowSchema", "flatten", "object_rows", "stack_objects"]

Path = tuple[str, ...]

# A container made without the constructor's checks costs 3 us instead of 14; both take the same arguments.
_new_tensordict = getattr(TensorDict, "_new_unsafe", TensorDict)


class FlatRows(NamedTuple):
    """A TensorDict or tensor taken apart.

    Attributes:
        tensors: tensor leaves by path, not copied; a plain tensor has the path ``()``.
        objects: non-tensor leaves by path.
        nodes: batch sizes of the containers by path; ``()`` is the root.
    """

    tensors: dict[Path, Tensor]
    objects: dict[Path, Any]
    nodes: dict[Path, torch.Size]


def flatten(data: Any) -> FlatRows:
    """Take data apart into leaves.

    Args:
        data: a TensorDict (a tensorclass counts as one), or a tensor.

    Raises:
        ReplayBufferError: `data` are something else.
    """
    flat = FlatRows({}, {}, {})
    if isinstance(data, Tensor):
        flat.tensors[()] = data
    elif isinstance(data, TensorDictBase) or (is_tensor_collection(data) and not is_non_tensor(data)):
        _walk(data, (), flat)
    else:
        raise ReplayBufferError(
            f"a tensor storage takes a TensorDict or a tensor, got {type(data).__name__}. "
            "Make it a TensorDict(..., batch_size=[n]), or use ListStorage, which keeps any object."
        )
    return flat


def _walk(node: Any, path: Path, flat: FlatRows) -> None:
    flat.nodes[path] = node.batch_size
    for name, value in node.items():
        place = (*path, name)
        if isinstance(value, Tensor):
            flat.tensors[place] = value
        elif is_non_tensor(value):
            flat.objects[place] = value
        else:
            _walk(value, place, flat)


@dataclass(frozen=True)
class LeafSpec:
    """What one tensor leaf of a row looks like: its path, dtype and shape without the rows' dimensions."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RowSchema:
    """The structure that all rows of a storage share.

    Attributes:
        leaves: the tensor leaves in order; one with path ``()`` where rows are plain tensors.
        objects: paths of the non-tensor leaves.
        nodes: the containers, parents first, with the batch dimensions that they have beyond the rows'.
    """

    leaves: tuple[LeafSpec, ...]
    objects: tuple[Path, ...]
    nodes: tuple[tuple[Path, tuple[int, ...]], ...]

    @classmethod
    def of(cls, flat: FlatRows, row_dims: int) -> RowSchema:
        """The structure of the first data, whose `row_dims` leading dimensions count rows."""
        leaves = (LeafSpec(path, leaf.dtype, tuple(leaf.shape[row_dims:])) for path, leaf in flat.tensors.items())
        nodes = ((path, tuple(batch[row_dims:])) for path, batch in flat.nodes.items())
        return cls(tuple(leaves), tuple(flat.objects), tuple(nodes))

    @property
    def is_tensor(self) -> bool:
        """Whether rows are plain tensors rather than TensorDicts."""
        return not self.nodes

    @property
    def object_dims(self) -> tuple[int, ...]:
        """For each non-tensor leaf, how many batch dimensions a row of it has beyond the rows' own."""
        extra = dict(self.nodes)
        return tuple(len(extra[path[:-1]]) for path in self.objects)

    @property
    def row_batch(self) -> tuple[int, ...]:
        """The batch dimensions of one row: empty, unless whole sequences are stored as rows."""
        return self.nodes[0][1] if self.nodes else ()

    def check(self, flat: FlatRows, row_dims: int) -> None:
        """Raise ReplayBufferError, naming the entry, where `flat` has another structure."""
        for spec in self.leaves:
            leaf = flat.tensors.get(spec.path)
            if leaf is None:
                raise self._missing(spec.path, flat)
            if leaf.dtype != spec.dtype or leaf.shape[row_dims:] != spec.shape:
                raise _mismatch(spec, leaf, row_dims)
        for path in self.objects:
            if path not in flat.objects:
                raise self._missing(path, flat)
        if len(flat.tensors) != len(self.leaves) or len(flat.objects) != len(self.objects):
            known = {*(spec.path for spec in self.leaves), *self.objects}
            extra = next(path for path in (*flat.tensors, *flat.objects) if path not in known)
            raise ReplayBufferError(
                f"the data have {as_key(extra)!r}, which the rows of this buffer do not have: the first write fixed "
                f"{self._names()}. Drop it with data.exclude({as_key(extra)!r}), or write it from the first time on."
            )

    def _names(self) -> str:
        return ", ".join(repr(as_key(path)) for path in (*(spec.path for spec in self.leaves), *self.objects))

    def _missing(self, path: Path, flat: FlatRows) -> ReplayBufferError:
        if self.is_tensor or () in flat.tensors:
            kinds = ("a tensor", "TensorDicts") if () in flat.tensors else ("a TensorDict", "tensors")
            return ReplayBufferError(
                f"the data are {kinds[0]}, the rows of this buffer are {kinds[1]}: give it one kind only."
            )
        have = ", ".join(repr(as_key(known)) for known in (*flat.tensors, *flat.objects))
        return ReplayBufferError(
            f"the data lack {as_key(path)!r}, which the rows of this buffer have since the first write; the data have "
            f"{have}. Add the entry to every write, or use a new buffer for data of another structure."
        )

    def build(self, tensors: list[Tensor], objects: list[Any], batch: tuple[int, ...], device: Any) -> Any:
        """Rows put together from leaves in the schema's order.

        Args:
            tensors: one tensor ``[*batch, ...]`` per leaf.
            objects: one non-tensor container per object leaf.
            batch: the rows' dimensions in the result.
            device: the device of the result, already that of the tensors.
        """
        if self.is_tensor:
            return tensors[0]
        contents: dict[Path, dict[str, Any]] = {path: {} for path, _ in self.nodes}
        for spec, leaf in zip(self.leaves, tensors, strict=True):
            contents[spec.path[:-1]][spec.path[-1]] = leaf
        for path, value in zip(self.objects, objects, strict=True):
            contents[path[:-1]][path[-1]] = value
        # Children come after their parents, so that each is complete before its parent needs it.
        for path, extra in reversed(self.nodes):
            node = _new_tensordict(contents[path], batch_size=torch.Size((*batch, *extra)), device=device)
            if not path:
                return node
            contents[path[:-1]][path[-1]] = node
        raise AssertionError("a schema of TensorDict rows has a root")

    def state_dict(self) -> dict[str, Any]:
        """The structure as plain data."""
        return {
            "leaves": [
                [list(leaf.path), str(leaf.dtype).removeprefix("torch."), list(leaf.shape)] for leaf in self.leaves
            ],
            "objects": [list(path) for path in self.objects],
            "nodes": [[list(path), list(extra)] for path, extra in self.nodes],
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RowSchema:
        """The structure that :meth:`state_dict` described."""
        return cls(
            tuple(LeafSpec(tuple(path), getattr(torch, dtype), tuple(shape)) for path, dtype, shape in state["leaves"]),
            tuple(tuple(path) for path in state["objects"]),
            tuple((tuple(path), tuple(extra)) for path, extra in state["nodes"]),
        )


def _mismatch(spec: LeafSpec, leaf: Tensor, row_dims: int) -> ReplayBufferError:
    got = f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[row_dims:])}"
    want = f"{str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"
    name = repr(as_key(spec.path)) if spec.path else "the tensor"
    cure = (
        f"Cast it with .to(torch.{str(spec.dtype).removeprefix('torch.')})"
        if leaf.dtype != spec.dtype
        else "Reshape it"
    )
    return ReplayBufferError(
        f"a row of {name} is {got}, the rows of this buffer have {want} since the first write. {cure}."
    )


def object_rows(value: Any, row_dims: int) -> list[Any]:
    """The rows of a non-tensor leaf (batch size ``[*rows, ...]``) as a flat list, first dimension slowest."""
    if row_dims == 0:
        return [value.tolist() if value.batch_dims else value.data]
    rows: Any = value.tolist()
    for _ in range(row_dims - 1):
        rows = [row for part in rows for row in part]
    return list(rows)


def stack_objects(rows: list[Any], dims: int = 1) -> Any:
    """A non-tensor leaf with batch size ``[len(rows), ...]``; each row is a list nested ``dims - 1`` deep."""
    if not rows:
        return NonTensorData(None, batch_size=[0])
    if dims == 1:
        return NonTensorStack(*(NonTensorData(row) for row in rows))
    return NonTensorStack(*(stack_objects(list(row), dims - 1) for row in rows))
