"""``SharedMemWeightSyncScheme``: weights lie once in memory that the learner writes and the workers read."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_collectors.process.memory import Layout, SharedMemory
from rl_collectors.weights.scheme import WeightChannel, WeightReceiver, WeightSource, WeightSyncScheme

__all__ = ["SharedMemWeightSyncScheme"]


class SharedMemWeightSyncScheme(WeightSyncScheme):
    """Weights are copied into shared memory once, whatever the number of workers; each worker copies them out.

    The memory is written while no worker reads it: every ``send`` waits for the acknowledgements of the one before.

    Args:
        strategy: of a module, "state_dict" sends parameters and persistent buffers, "tensordict" all buffers.
        sync: wait in ``send`` until every worker acts with the new weights; False waits before the next one.
        timeout: seconds that a worker may take for it.
    """

    def __init__(self, strategy: str = "state_dict", sync: bool = True, timeout: float = 60.0) -> None:
        super().__init__(strategy, sync, timeout)
        self._layout: Layout | None = None
        self._memory: SharedMemory | None = None
        self._views: dict[str, Tensor] = {}
        self._knowing: set[int] = set()  # the channels whose workers have mapped the memory

    @torch.no_grad()
    def _parts(self, weights: Mapping[str, Tensor], channels: Sequence[WeightChannel]) -> list[Sequence[Any]]:
        layout = Layout.of(weights)
        if layout != self._layout:
            self._layout, self._memory = layout, SharedMemory.create(layout.size)
            self._views = layout.views(self._memory.memory)
            self._knowing.clear()
        for name, value in weights.items():
            self._views[name].copy_(value)
        known = pickle.dumps(None)
        parts: list[Sequence[Any]] = []
        for channel in channels:
            parts.append((known,) if id(channel) in self._knowing else (pickle.dumps(layout), self._memory))
            self._knowing.add(id(channel))
        return parts

    def receiver(self) -> WeightReceiver:
        return _Reader()

    def shutdown(self) -> None:
        super().shutdown()
        self._layout, self._memory, self._views = None, None, {}
        self._knowing.clear()


class _Reader(WeightReceiver):
    def __init__(self) -> None:
        self.views: dict[str, Tensor] = {}

    def receive(self, source: WeightSource) -> Mapping[str, Tensor]:
        layout = pickle.loads(source.read_bytes())
        if layout is not None:
            self.views = layout.views(source.read_memory(layout.size))
        return self.views
