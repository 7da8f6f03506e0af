"""RowPut: one row of a TensorDict checked and copied by a single native call, for data that are as plain as can be."""

from __future__ import annotations

import ctypes
import functools
import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_buffers.native import library
from rl_buffers.rows import RowSchema
from rl_core.errors import NativeError

__all__ = ["RowPut"]

_INDEX_OUT_OF_RANGE = -1  # native/abi.h
_PLACE = 4  # the head's word that says which row is written
_DLPACK = 1  # the major version whose structures native/put.cpp knows

_KINDS: dict[torch.dtype, tuple[int, int]] = {
    torch.bool: (6, 8),
    torch.bfloat16: (4, 16),
    **{getattr(torch, f"int{bits}"): (0, bits) for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{bits}"): (1, bits) for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"float{bits}"): (2, bits) for bits in (16, 32, 64)},
}
"""DLPack's code and bits of the dtypes that take the quick way."""


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3: what a tensor library offers for looking at its tensors from C."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("look", ctypes.c_void_p),
    )


@functools.cache
def _look() -> int:
    """The address of the C function by which torch shows a tensor, 0 where this torch has none that is known here."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    api = _Exchange.from_address(pointer(capsule, b"dlpack_exchange_api"))
    return int(api.look or 0) if api.major == _DLPACK else 0


def _item() -> int:
    """The address of Python's C function that gives an item of a list."""
    return int(ctypes.cast(ctypes.pythonapi.PyList_GetItem, ctypes.c_void_p).value or 0)


class _Node(NamedTuple):
    """What a container of a row must be: its names in order, the types of its values, and its containers.

    Attributes:
        names: the entries' names, in the order of the schema.
        known: the same as a set.
        types: Tensor or TensorDict for each.
        inner: position and node of each container.
    """

    names: tuple[str, ...]
    known: frozenset[str]
    types: tuple[type, ...]
    inner: tuple[tuple[int, _Node], ...]


class RowPut:
    """Writes single rows into fixed columns.

    It says no to whatever is not plain: other containers, other tensors than contiguous ones on the CPU, another
    structure. Nothing is written then, and the careful way (:meth:`rl_buffers.rows.RowSchema.check`) takes the data or
    says what is wrong.

    Args:
        schema: the rows' structure, of TensorDicts.
        columns: contiguous tensors ``[capacity, ...]`` that stay where they are, one per leaf.
        call: the native function (see :meth:`of`).
    """

    def __init__(self, schema: RowSchema, columns: Sequence[Tensor], call: Callable[[int, list[Any]], int]) -> None:
        self._batch = torch.Size(schema.row_batch)
        places: list[int] = []
        self._root = _node(_tree(schema), places)
        words = [_look(), _item(), len(columns), columns[0].shape[0], 0]
        for place in places:
            column = columns[place]
            shape = tuple(column.shape[1:])
            size = math.prod(shape) * column.element_size()
            words += [0, column.data_ptr(), size, *_KINDS[column.dtype], len(shape), *shape]
        self._plan = array("q", words)
        self._call, self._address = call, self._plan.buffer_info()[0]
        # A number with the sign bit of a view (x.conj().imag) is dense only where it is alone.
        self._single = [
            i
            for i, place in enumerate(places)
            if columns[place][:1].numel() == 1 and columns[place].is_floating_point()
        ]

    @classmethod
    def of(cls, schema: RowSchema, columns: Sequence[Tensor]) -> RowPut | None:
        """The quick way for these columns, where there is one."""
        loaded = library()
        if loaded is None or not columns or schema.is_tensor or schema.objects or not _look():
            return None
        if not all(column.is_cpu and column.is_contiguous() and column.dtype in _KINDS for column in columns):
            return None
        call = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.py_object)(("rl_put_row", loaded))
        return cls(schema, columns, call)

    def __call__(self, data: Any, place: int) -> bool:
        """Write `data` as row `place`, below the capacity; False where they are not plain, and nothing is written.

        Not for several threads at once.
        """
        if type(data) is not TensorDict or data.batch_size != self._batch:
            return False
        leaves: list[Any] = []
        if not _collect(data, self._root, leaves):
            return False
        for i in self._single:
            if leaves[i].is_neg():
                return False
        self._plan[_PLACE] = place
        try:
            code = self._call(self._address, leaves)
        except RuntimeError:  # torch cannot show one of them: the careful way says what it is
            return False
        if code < _INDEX_OUT_OF_RANGE:
            raise NativeError(f"rl_put_row returned {code}; please report it with `rl doctor`")
        return code == 0


def _tree(schema: RowSchema) -> dict[str, Any]:
    """The containers as dicts, and in the place of each leaf its number, in the order of the first data."""
    root: dict[str, Any] = {}
    for place, leaf in enumerate(schema.leaves):
        node = root
        for name in leaf.path[:-1]:
            node = node.setdefault(name, {})
        node[leaf.path[-1]] = place
    for path, _ in schema.nodes:  # those without a leaf
        node = root
        for name in path:
            node = node.setdefault(name, {})
    return root


def _node(tree: dict[str, Any], places: list[int]) -> _Node:
    """What a container must be; the numbers of its leaves, and of those below it, are appended to `places`."""
    inner = []
    for position, entry in enumerate(tree.values()):
        if isinstance(entry, dict):
            inner.append((position, _node(entry, places)))
        else:
            places.append(entry)
    types = tuple(TensorDict if isinstance(entry, dict) else Tensor for entry in tree.values())
    return _Node(tuple(tree), frozenset(tree), types, tuple(inner))


def _collect(node: Any, wanted: _Node, leaves: list[Any]) -> bool:
    """Append the tensors of a container in the schema's order; False where it is another one."""
    entries = dict(node.items())
    values = tuple(entries.values())
    if tuple(entries) != wanted.names:
        if entries.keys() != wanted.known:
            return False
        values = tuple([entries[name] for name in wanted.names])
    if tuple(map(type, values)) != wanted.types:
        return False
    if not wanted.inner:
        leaves += values
        return True
    begin = 0
    for position, inner in wanted.inner:
        leaves += values[begin:position]
        if not _collect(values[position], inner, leaves):
            return False
        begin = position + 1
    leaves += values[begin:]
    return True
