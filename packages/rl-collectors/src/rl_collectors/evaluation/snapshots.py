"""Snapshots of weights: copies that training, which goes on in place, does not reach."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rl_collectors.weights.named import named_weights

__all__ = ["copied_policy", "snapshot"]


def copied_policy(policy: Any, elsewhere: bool) -> Any:
    """A policy to act in place of one that is trained; for another process it is copied when it is sent."""
    return policy if elsewhere or not isinstance(policy, nn.Module) else copy.deepcopy(policy)


def snapshot(source: Any, elsewhere: bool) -> dict[str, Tensor]:
    """A copy of weights by their names.

    Args:
        source: a module, a state dict or a TensorDict of parameters.
        elsewhere: copy them to the CPU, for another process.
    """
    weights = named_weights(source)
    if elsewhere:
        return {name: value.cpu().clone() for name, value in weights.items()}
    taken = {name: value.clone() for name, value in weights.items()}
    for device in {value.device for value in taken.values() if value.is_cuda}:
        torch.cuda.current_stream(device).synchronize()  # the thread that reads them has a stream of its own
    return taken
