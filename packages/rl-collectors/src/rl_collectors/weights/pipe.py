"""``MultiProcessWeightSyncScheme``: a copy of the weights goes to each worker through its pipe."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_collectors.process.memory import Layout
from rl_collectors.weights.scheme import WeightChannel, WeightReceiver, WeightSource, WeightSyncScheme

__all__ = ["MultiProcessWeightSyncScheme"]


class MultiProcessWeightSyncScheme(WeightSyncScheme):
    """Weights are sent as bytes, once for each worker; for workers that share no memory with the learner.

    Args:
        strategy: of a module, "state_dict" sends parameters and persistent buffers, "tensordict" all buffers.
        sync: wait in ``send`` until every worker acts with the new weights; False waits before the next one.
        timeout: seconds that a worker may take for it.
    """

    @torch.no_grad()
    def _parts(self, weights: Mapping[str, Tensor], channels: Sequence[WeightChannel]) -> list[Sequence[Any]]:
        layout = Layout.of(weights)
        held = bytearray(layout.size)
        for name, view in layout.views(held).items():
            view.copy_(weights[name])
        return [(pickle.dumps(layout), held)] * len(channels)

    def receiver(self) -> WeightReceiver:
        return _Unpacker()


class _Unpacker(WeightReceiver):
    def receive(self, source: WeightSource) -> Mapping[str, Tensor]:
        layout: Layout = pickle.loads(source.read_bytes())
        return layout.views(source.read_bytes())
