"""What travels from an actor to its owner: the tensors of a batch as arrays, which Ray keeps in its object store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_collectors.process.slots import Filled, leaves_of
from rl_collectors.process.worker import Gathered
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["Chunks", "SentBatch", "SentTensor"]


@dataclass(frozen=True)
class SentTensor:
    """A tensor's dtype, shape and bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    content: np.ndarray[Any, Any]

    @classmethod
    def of(cls, tensor: Tensor) -> SentTensor:
        """The tensor, ready to travel; no copy where it is contiguous and on the CPU."""
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return cls(tensor.dtype, tuple(tensor.shape), content)

    def tensor(self) -> Tensor:
        """The tensor, in memory of its own: the object store can let go of its bytes."""
        if not self.content.size:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.from_numpy(self.content.copy()).view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class SentBatch:
    """A worker's word about a batch, with its tensors, or without where these went to a buffer.

    Attributes:
        slot: as asked for.
        gathered: what the batch is.
        tensors: its dense entries.
        rest: the entries that are no tensors.
        sizes: batch sizes of nested TensorDicts beyond the root's.
        on_device: whether the batch says that it lives on the CPU.
        next_id: the next trajectory id of this worker, where it numbers trajectories itself.
    """

    slot: int
    gathered: Gathered
    tensors: Mapping[Key, SentTensor] = field(default_factory=dict)
    rest: TensorDictBase | None = None
    sizes: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    on_device: bool = False
    next_id: int = 0

    @property
    def filled(self) -> Filled:
        """The same word in the form in which worker processes give it."""
        return Filled(self.slot, self.gathered, None, 0, self.rest, self.sizes, self.on_device)

    def views(self) -> dict[Key, Tensor]:
        """The tensors."""
        return {key: value.tensor() for key, value in self.tensors.items()}


class Chunks:
    """The pieces ``[*B, k]`` of one batch, in their order."""

    def __init__(self) -> None:
        self.chunks: list[TensorDictBase] = []

    def store(self, chunk: TensorDictBase, offset: int, steps: int) -> None:
        """Keep a chunk; what a :class:`~rl_collectors.process.worker.CollectorWorker` calls."""
        self.chunks.append(chunk)

    def joined(self) -> TensorDictBase:
        """The steps that were taken, ``[*B, T]``."""
        if len(self.chunks) == 1:
            return self.chunks[0]
        keys = set(self.chunks[0].keys(True, True))
        for chunk in self.chunks[1:]:
            odd = keys ^ set(chunk.keys(True, True))
            if odd:
                raise CollectorError(
                    f"the entries {', '.join(sorted(map(str, odd)))} are in some steps of a batch and not in others"
                )
        return cast("TensorDictBase", torch.cat(cast("Any", self.chunks), self.chunks[0].ndim - 1))

    def sent(self, slot: int, gathered: Gathered) -> SentBatch:
        """The batch, ready to travel; steps that were not taken are zero."""
        batch = self.joined()
        parts, time = leaves_of(batch), batch.ndim - 1
        missing = gathered.order.steps - gathered.steps
        tensors = {key: SentTensor.of(_padded(value, time, missing)) for key, value in parts.dense.items()}
        rest = TensorDict(parts.rest, batch_size=batch.batch_size) if parts.rest else None
        return SentBatch(slot, gathered, tensors, rest, parts.sizes, batch.device is not None)


def _padded(value: Tensor, time: int, missing: int) -> Tensor:
    if not missing:
        return value
    shape = (*value.shape[:time], missing, *value.shape[time + 1 :])
    return torch.cat([value, value.new_zeros(shape)], time)
