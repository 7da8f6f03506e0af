"""Batches that travel: a worker's slot is sent as one block of bytes, into memory that the learner has set aside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_collectors.process.memory import Layout
from rl_collectors.process.slots import Filled, WriteSlot
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["ArrivingSlot", "DepartingSlot"]


class DepartingSlot(WriteSlot):
    """The worker's side: it writes a batch here, and sends the whole."""

    def block(self) -> Tensor:
        """The batch's bytes, in place."""
        assert self.memory is not None and self.layout is not None
        return torch.frombuffer(self.memory.memory, dtype=torch.uint8)[: self.layout.size]

    def sent(self) -> None:
        """The learner knows the layout now."""
        self._told, self._fresh = self.layout, 0
        if self.memory is not None:
            self.memory.close_handle()


class ArrivingSlot:
    """The learner's side.

    Attributes:
        views: the tensors of the batch that arrived last.
    """

    def __init__(self) -> None:
        self.views: dict[Key, Tensor] = {}
        self._layout: Layout | None = None
        self._memory: Any = np.empty(0, dtype=np.uint8)

    def room(self, filled: Filled) -> Tensor:
        """Where the bytes of the batch that is announced shall go."""
        if filled.layout is not None:
            self._layout = filled.layout
            if self._layout.size > len(self._memory):
                self._memory = np.empty(self._layout.size, dtype=np.uint8)
            self.views = self._layout.views(self._memory)
        if self._layout is None:
            raise CollectorError("a batch arrived whose layout was never told")
        return torch.from_numpy(self._memory)[: self._layout.size]
