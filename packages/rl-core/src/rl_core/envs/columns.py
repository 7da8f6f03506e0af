"""Columnar storage: one time-major array per leaf, written row by row, read once per batch.

Leaves that exist at the root *and* under "next" (observations, end flags) are *carried*: they have ``T + 1`` rows, and
row ``t + 1`` is at once what step t wrote under "next" and the root of step t + 1. Only where an episode ended do the
two differ; those rows are kept aside (:class:`Endings`) before the reset overwrites them. Actions and rewards have
``T`` rows.

Arrays are numpy views of torch tensors: the simulator writes numpy rows, the policy reads tensor rows of the same
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from rl_core.keys import Key, as_path
from rl_core.specs import NonTensor, TensorSpec

__all__ = ["Columns", "Endings", "RowProgram", "nest", "object_row"]

Array = np.ndarray


@dataclass(frozen=True)
class RowProgram:
    """What an environment or a transform does with rows; bound once to its columns, then called once per step.

    Attributes:
        step: ``step(t)`` reads action row t and carried row t, writes reward row t and carried row t + 1.
        reset: ``reset(t, mask)`` writes first observations into carried row t, for the batch rows of ``mask`` (bool
            ``[*B]``) or all of them (None).
        before: ``before(t)`` rewrites action row t on its way to the simulator (inverse transforms).
        ahead: ``ahead(t)`` runs before the policy acts, and writes into carried row t + 1 what holds there unless the
            policy writes it.
    """

    step: Callable[[int], None]
    reset: Callable[[int, Array | None], None]
    before: Callable[[int], None] | None = None
    ahead: Callable[[int], None] | None = None


class Columns:
    """The columns of one environment.

    Args:
        n_steps: T.
        batch_size: the environment's batch size.
    """

    def __init__(self, n_steps: int, batch_size: torch.Size) -> None:
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.arrays: dict[Key, Array] = {}
        self.tensors: dict[Key, Tensor] = {}
        self.carried: list[Key] = []

    def __getitem__(self, key: Key) -> Array:
        """The time-major array of a leaf: ``[T + 1, *B, ...]`` where it is carried, else ``[T, *B, ...]``."""
        return self.arrays[key]

    def __contains__(self, key: object) -> bool:
        return key in self.arrays

    def add(self, key: Key, spec: TensorSpec, *, carried: bool, scratch: bool = False) -> None:
        """Allocate a leaf; a scratch leaf has one row that stands for every time (its values are used at once)."""
        rows = self.n_steps + 1 if carried else self.n_steps
        if isinstance(spec, NonTensor):
            self.arrays[key] = np.empty((rows, *spec.shape), dtype=object)
        else:
            held = torch.zeros((1 if scratch else rows, *spec.shape), dtype=spec.dtype)
            tensor = held.expand(rows, *spec.shape) if scratch else held
            self.tensors[key] = tensor
            self.arrays[key] = tensor.numpy()
        if carried:
            self.carried.append(key)

    def inner(self, leaves: Mapping[Key, tuple[TensorSpec, bool]], rewritten: Collection[Key] = ()) -> Columns:
        """Columns of the stage before a transform: shared where a leaf stays as it is, scratch where it changes.

        Args:
            leaves: key -> (spec, carried) of every leaf of that stage.
            rewritten: actions that the transform's inverse writes; the policy's own stay as they are.
        """
        stage = Columns(self.n_steps, self.batch_size)
        for key, (spec, carried) in leaves.items():
            if key not in rewritten and self._holds(key, spec):
                stage.arrays[key] = self.arrays[key]
                if key in self.tensors:
                    stage.tensors[key] = self.tensors[key]
                if carried:
                    stage.carried.append(key)
            else:
                stage.add(key, spec, carried=carried, scratch=True)
        return stage

    def _holds(self, key: Key, spec: TensorSpec) -> bool:
        """Whether this stage has a column of the spec's dtype and shape."""
        if isinstance(spec, NonTensor):
            return key in self.arrays and key not in self.tensors
        mine = self.tensors.get(key)
        return mine is not None and mine.dtype == spec.dtype and mine.shape[1:] == spec.shape

    def carry_over(self) -> None:
        """The last carried row becomes the first: a batch begins where the one before ended."""
        for key in self.carried:
            self.arrays[key][0] = self.arrays[key][self.n_steps]

    # ---------------------------------------------------------------- reading a batch
    def batch_major(self, key: Key, start: int, stop: int) -> Tensor | Any:
        """A copy of rows ``start .. stop - 1`` as ``[*B, T, ...]``."""
        dims = len(self.batch_size)
        if key not in self.tensors:
            objects = [object_row(row, self.batch_size) for row in self.arrays[key][start:stop]]
            return NonTensorStack(*objects, stack_dim=dims)
        rows = self.tensors[key][start:stop]
        if dims == 1:
            rows = rows.transpose(0, 1)
        elif dims:
            rows = rows.movedim(0, dims)
        return rows.clone(memory_format=torch.contiguous_format)  # contiguous() alone copies nothing where N or T is 1


@dataclass
class Endings:
    """The true last values of the episodes that ended inside a batch, before their rows were reset."""

    keys: list[Key]
    times: list[int] = field(default_factory=list)
    rows: list[Array | None] = field(default_factory=list)
    values: dict[Key, list[Any]] = field(default_factory=dict)

    def save(self, columns: Columns, t: int, mask: Array | None) -> None:
        """Keep carried row ``t + 1`` of the rows that ended at step t."""
        self.times.append(t)
        self.rows.append(None if mask is None else np.flatnonzero(mask))
        for key in self.keys:
            row = columns.arrays[key][t + 1]
            if mask is not None:
                row = row[mask]  # a copy
            elif isinstance(row, np.ndarray):
                row = row.copy()
            self.values.setdefault(key, []).append(row)

    def clear(self) -> None:
        """Forget a batch."""
        self.times.clear()
        self.rows.clear()
        self.values.clear()

    def restore(self, key: Key, nxt: Tensor | Any, batch_size: torch.Size) -> Tensor | Any:
        """Write the kept values into the "next" leaf ``[*B, T, ...]``, in place."""
        if not self.times:
            return nxt
        if not isinstance(nxt, Tensor):
            return self._restore_objects(key, nxt, batch_size)
        dims = len(batch_size)
        if dims == 0:
            nxt[torch.tensor(self.times)] = torch.from_numpy(np.stack(self.values[key]))
            return nxt
        rows = [row for row in self.rows if row is not None]
        env = torch.from_numpy(np.concatenate(rows))
        time = torch.from_numpy(np.repeat(self.times, [len(row) for row in rows]))
        nxt.flatten(0, dims - 1)[env, time] = torch.from_numpy(np.concatenate(self.values[key]))
        return nxt

    def _restore_objects(self, key: Key, nxt: Any, batch_size: torch.Size) -> Any:
        lists = nxt.tolist()
        for t, rows, values in zip(self.times, self.rows, self.values[key], strict=True):
            if rows is None:
                lists[t] = values.item() if isinstance(values, np.ndarray) else values
            else:
                for row, value in zip(rows, values, strict=True):
                    lists[row][t] = value
        return NonTensorStack.from_list(lists)


def object_row(row: Any, batch_size: torch.Size) -> Any:
    """One row of an object column as non-tensor data of the batch's size."""
    from tensordict import NonTensorData

    if not len(batch_size):
        return NonTensorData(row.item() if isinstance(row, np.ndarray) else row)
    return NonTensorStack.from_list(row.tolist())


def nest(leaves: Mapping[Key, Any], batch_size: torch.Size, device: torch.device | None = None) -> TensorDictBase:
    """A TensorDict from leaves by key, nested where keys are, built in one go."""
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        node = tree
        *parents, name = as_path(key)
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return _build(tree, batch_size, device)


def _build(tree: dict[str, Any], batch_size: torch.Size, device: torch.device | None) -> TensorDictBase:
    return TensorDict(
        {name: _build(value, batch_size, device) if isinstance(value, dict) else value for name, value in tree.items()},
        batch_size=batch_size,
        device=device,
    )
