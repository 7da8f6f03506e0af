"""Shared batches: a worker writes its steps into a slot, its owner reads them there; no tensor is pickled.

A slot is written by the worker and read by the owner in turns: it may be written again when the owner asks for the next
batch in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_collectors.process.memory import Layout, SharedMemory
from rl_collectors.process.worker import Gathered
from rl_core.envs.entries import is_group
from rl_core.errors import CollectorError
from rl_core.keys import Key, join

__all__ = ["Filled", "ReadSlot", "WriteSlot", "leaves_of"]


@dataclass
class Parts:
    """The entries of a TensorDict by kind.

    Attributes:
        dense: the tensors.
        rest: everything else (texts, ragged rows), as leaves.
        sizes: nested TensorDicts with more batch dimensions than the root: key -> those beyond the root's.
    """

    dense: dict[Key, Tensor] = field(default_factory=dict)
    rest: dict[Key, Any] = field(default_factory=dict)
    sizes: dict[Key, tuple[int, ...]] = field(default_factory=dict)


def leaves_of(data: TensorDictBase) -> Parts:
    """The entries of a TensorDict by kind."""
    parts = Parts()
    _sort(data, data.batch_dims, None, parts)
    return parts


def _sort(node: TensorDictBase, dims: int, prefix: Key | None, parts: Parts) -> None:
    for name, value in node.items():
        key = name if prefix is None else join(prefix, name)
        if isinstance(value, Tensor):
            parts.dense[key] = value
        elif is_group(value, dims):
            if value.batch_dims > dims:
                parts.sizes[key] = tuple(value.batch_size[dims:])
            _sort(value, dims, key, parts)
        else:
            parts.rest[key] = value


@dataclass(frozen=True)
class Filled:
    """A worker's word that a slot holds a batch.

    Attributes:
        slot: which.
        gathered: what the batch is.
        layout: where its tensors lie; None: as the last time.
        fresh_memory: bytes of new memory, whose handle follows this message; 0: the same memory as before.
        rest: the entries that are no tensors.
        sizes: batch sizes of nested TensorDicts beyond the root's.
        on_device: whether the batch says that it lives on the CPU.
    """

    slot: int
    gathered: Gathered
    layout: Layout | None
    fresh_memory: int
    rest: TensorDictBase | None
    sizes: Mapping[Key, tuple[int, ...]]
    on_device: bool


class WriteSlot:
    """The worker's side of a slot."""

    def __init__(self) -> None:
        self.memory: SharedMemory | None = None
        self.layout: Layout | None = None
        self.views: dict[Key, Tensor] = {}
        self._parts = Parts()
        self._rest: list[TensorDictBase] = []
        self._time = 0
        self._told: Layout | None = None
        self._fresh = 0
        self._on_device = False

    def store(self, chunk: TensorDictBase, offset: int, steps: int) -> None:
        """Write a chunk ``[*B, k]`` as the steps from ``offset`` on of a batch of ``steps``."""
        parts = leaves_of(chunk)
        if offset == 0:
            self._time, self._on_device = chunk.batch_dims - 1, chunk.device is not None
            self._prepare(parts, steps)
        taken = chunk.shape[-1]
        if parts.dense.keys() != self.views.keys():
            odd = sorted(map(str, parts.dense.keys() ^ self.views.keys()))
            raise CollectorError(f"the entries {', '.join(odd)} are in some steps of a batch and not in others")
        for key, value in parts.dense.items():
            view = self.views[key]
            (view if taken == steps else view.narrow(self._time, offset, taken)).copy_(value)
        if parts.rest:
            self._rest.append(TensorDict(parts.rest, batch_size=chunk.batch_size))

    def _prepare(self, parts: Parts, steps: int) -> None:
        self._rest, self._parts = [], parts
        time = self._time
        layout = Layout.planned(
            {
                key: (value.dtype, (*value.shape[:time], steps, *value.shape[time + 1 :]))
                for key, value in parts.dense.items()
            }
        )
        if self.memory is None or layout.size > self.memory.size:
            self.views = {}
            self.memory = SharedMemory.create(layout.size)
            self._fresh, self.layout = self.memory.size, None
        if layout != self.layout:
            self.layout, self.views = layout, layout.views(self.memory.memory)

    def filled(self, slot: int, gathered: Gathered) -> Filled:
        """The word for the owner; missing steps of a batch that was cut short are zero."""
        missing = gathered.order.steps - gathered.steps
        if missing:
            for view in self.views.values():
                view.narrow(self._time, gathered.steps, missing).zero_()
        rest = cast("TensorDictBase", torch.cat(cast("Any", self._rest), self._time)) if self._rest else None
        layout = None if self.layout == self._told else self.layout
        return Filled(slot, gathered, layout, self._fresh, rest, self._parts.sizes, self._on_device)

    def told(self, pipe: Connection, pid: int) -> None:
        """After the word has been sent: the memory's handle, where it is new."""
        self._told = self.layout
        if self._fresh:
            assert self.memory is not None
            self.memory.send(pipe, pid)
            self.memory.close_handle()
            self._fresh = 0


class ReadSlot:
    """The owner's side of a slot."""

    def __init__(self) -> None:
        self.memory: SharedMemory | None = None
        self.layout: Layout | None = None
        self.views: dict[Key, Tensor] = {}

    def hear(self, filled: Filled, pipe: Connection) -> None:
        """Follow what the worker says; takes the memory's handle from the pipe, where it is new."""
        if filled.fresh_memory:
            self.views = {}
            self.memory = SharedMemory.receive(pipe, filled.fresh_memory)
            self.memory.close_handle()
        if filled.layout is not None:
            self.layout = filled.layout
        if filled.layout is not None or filled.fresh_memory:
            assert self.memory is not None and self.layout is not None
            self.views = self.layout.views(self.memory.memory)
