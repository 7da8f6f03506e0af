"""RandomSampler: uniform draws with replacement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.buffers import Sampler, Storage
from rl_core.errors import ReplayBufferError

__all__ = ["RandomSampler"]


class RandomSampler(Sampler):
    """Draws each row independently and uniformly over the filled slots; it never runs out.

    >>> from rl_buffers import ListStorage
    >>> from rl_core.buffers import Span
    >>> storage = ListStorage(4)
    >>> storage.write(storage.prepare(["a", "b"]), [Span(0, 2, 0)])
    >>> index, info = RandomSampler().sample(storage, 5)
    >>> index.shape, bool((index < 2).all()), info
    (torch.Size([5]), True, {})
    """

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """`batch_size` slots, int64 ``[B]``."""
        filled = len(storage)
        if filled == 0:
            raise ReplayBufferError("the storage is empty: add or extend before sampling")
        return torch.randint(filled, (batch_size,), generator=self.generator), {}
