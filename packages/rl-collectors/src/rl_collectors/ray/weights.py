"""``RayWeightSyncScheme``: weights lie once in Ray's object store, from where every actor reads them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_collectors.process.memory import Layout
from rl_collectors.ray.library import ray
from rl_collectors.weights.pipe import MultiProcessWeightSyncScheme
from rl_collectors.weights.scheme import WeightChannel

__all__ = ["RayWeightSyncScheme"]


class RayWeightSyncScheme(MultiProcessWeightSyncScheme):
    """Weights are put into Ray's object store once for all actors; a node fetches them once for the actors on it.

    Args:
        strategy: of a module, "state_dict" sends parameters and persistent buffers, "tensordict" all buffers.
        sync: wait in ``send`` until every worker acts with the new weights; False waits before the next one.
        timeout: seconds that a worker may take for it.
    """

    @torch.no_grad()
    def _parts(self, weights: Mapping[str, Tensor], channels: Sequence[WeightChannel]) -> list[Sequence[Any]]:
        layout = Layout.of(weights)
        held = np.empty(layout.size, np.uint8)
        for name, view in layout.views(held).items():
            view.copy_(weights[name])
        return [(pickle.dumps(layout), ray.put(held))] * len(channels)
