"""Tensors in memory that a client and its server share; they are laid out once, then only copied into place."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from rl_collectors.inference.requests import Signature, signature_of
from rl_collectors.process.memory import Layout, SharedMemory
from rl_core.keys import Key

__all__ = ["ReadRegion", "WriteRegion"]


class WriteRegion:
    """The writer's side. A region is written and read in turns; whose turn it is, messages say."""

    def __init__(self) -> None:
        self._memory: SharedMemory | None = None
        self._known: object = None
        self._views: dict[Key, Tensor] = {}

    @torch.no_grad()
    def write(self, tensors: Mapping[Key, Tensor]) -> tuple[bytes, SharedMemory | None]:
        """Copy tensors into place.

        Returns:
            What the reader must hear first (nothing, where all lies as the last time), and new memory, whose handle
            follows.
        """
        note, fresh = b"", None
        shapes = [(key, value.dtype, value.shape) for key, value in tensors.items()]
        if shapes != self._known:
            layout = Layout.of(tensors)
            if self._memory is None or layout.size > self._memory.size:
                self._views = {}
                fresh = self._memory = SharedMemory.create(layout.size)
            self._known, self._views = shapes, layout.views(self._memory.memory)
            note = pickle.dumps((layout, 0 if fresh is None else fresh.size))
        for key, value in tensors.items():
            self._views[key].copy_(value)
        return note, fresh


class ReadRegion:
    """The reader's side.

    Attributes:
        views: the tensors; valid until the writer's next turn.
        signature: of these.
    """

    def __init__(self) -> None:
        self._memory: SharedMemory | None = None
        self.views: dict[Key, Tensor] = {}
        self.signature: Signature = ()

    def hear(self, note: bytes, pipe: Connection) -> None:
        """Follow what the writer says; takes the memory's handle from the pipe, where it is new."""
        if not note:
            return
        layout, size = pickle.loads(note)
        if size:
            self.views = {}
            self._memory = SharedMemory.receive(pipe, size)
            self._memory.close_handle()
        assert self._memory is not None
        self.views = layout.views(self._memory.memory)
        self.signature = signature_of(self.views)
