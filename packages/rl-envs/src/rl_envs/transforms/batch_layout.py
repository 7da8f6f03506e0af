"""``FlattenTensorDict`` and ``PinMemoryTransform``: how batches of a buffer lie in memory."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl_core import Transform
from rl_core.errors import ReplayBufferError

__all__ = ["FlattenTensorDict", "PinMemoryTransform"]


class FlattenTensorDict(Transform):
    """Merges all batch dimensions, ``[N, T] -> [N * T]``, so that a buffer stores single steps.

    Args:
        inverse: on the way into the buffer (True), or at sampling.
    """

    def __init__(self, inverse: bool = True) -> None:
        super().__init__()
        self.inverse = inverse

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sampled data."""
        return tensordict if self.inverse else _flat(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Data to be stored."""
        return _flat(tensordict) if self.inverse else tensordict


def _flat(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.reshape(-1) if tensordict.batch_dims != 1 else tensordict


class PinMemoryTransform(Transform):
    """Sampled batches in page-locked memory, which a GPU reads while the program goes on.

    ``batch.to("cuda", non_blocking=True)`` then does not wait.

    Raises:
        ReplayBufferError: there is no GPU to read them.
    """

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Pinned data."""
        if not torch.cuda.is_available():
            raise ReplayBufferError("PinMemoryTransform needs a CUDA device, and this machine shows none; leave it out")
        return tensordict.pin_memory()
