"""``DistributedWeightSyncScheme``: weights go to workers on other machines in one block, into memory set aside."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_collectors.process.memory import Layout
from rl_collectors.weights.scheme import WeightChannel, WeightReceiver, WeightSource, WeightSyncScheme

__all__ = ["DistributedWeightSyncScheme"]


class DistributedWeightSyncScheme(WeightSyncScheme):
    """Weights are copied into one block, which is sent to each worker; where what lies in it is said once.

    A block is written while none is under way: every ``send`` waits for the acknowledgements of the one before.

    Args:
        strategy: of a module, "state_dict" sends parameters and persistent buffers, "tensordict" all buffers.
        sync: wait in ``send`` until every worker acts with the new weights; False waits before the next one.
        timeout: seconds that a worker may take for it.
    """

    def __init__(self, strategy: str = "state_dict", sync: bool = True, timeout: float = 60.0) -> None:
        super().__init__(strategy, sync, timeout)
        self._layout: Layout | None = None
        self._block = bytearray()
        self._views: dict[str, Tensor] = {}
        self._knowing: set[int] = set()  # the channels whose workers know the layout

    @torch.no_grad()
    def _parts(self, weights: Mapping[str, Tensor], channels: Sequence[WeightChannel]) -> list[Sequence[Any]]:
        layout = Layout.of(weights)
        if layout != self._layout:
            self._layout, self._block = layout, bytearray(layout.size)
            self._views = layout.views(self._block)
            self._knowing.clear()
        for name, value in weights.items():
            self._views[name].copy_(value)
        parts: list[Sequence[Any]] = []
        for channel in channels:
            known = None if id(channel) in self._knowing else layout
            parts.append((pickle.dumps(known), self._block))
            self._knowing.add(id(channel))
        return parts

    def receiver(self) -> WeightReceiver:
        return _Unpacker()

    def shutdown(self) -> None:
        super().shutdown()
        self._layout, self._block, self._views = None, bytearray(), {}
        self._knowing.clear()


class _Unpacker(WeightReceiver):
    def __init__(self) -> None:
        self.layout: Layout | None = None

    def receive(self, source: WeightSource) -> Mapping[str, Tensor]:
        layout: Layout | None = pickle.loads(source.read_bytes())
        if layout is not None:
            self.layout = layout
        assert self.layout is not None, "the layout comes with the first weights"
        return self.layout.views(source.read_bytes())
