"""SamplerWithoutReplacement: epochs in which every row comes exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_core.buffers import Sampler, Storage
from rl_core.errors import ReplayBufferError

__all__ = ["SamplerWithoutReplacement"]


class SamplerWithoutReplacement(Sampler):
    """Gives every filled slot once per epoch, in a random order that is drawn anew for each epoch.

    An epoch starts when iteration over the buffer starts, when the last one is used up, and after data were written
    (so that new rows are not missed and overwritten ones not counted twice). The last batch of an epoch is shorter
    where the batch size does not divide the number of rows, unless `drop_last`.

    Args:
        drop_last: leave out a last batch that would be shorter; an epoch without one full batch raises.
        shuffle: ``False`` gives the slots in ascending order.
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0
        self._fresh = True  # the next sample draws a new order
        self._ran_out = False

    @property
    def ran_out(self) -> bool:
        """Whether the epoch is used up; the next sample starts another."""
        return self._ran_out

    def begin_epoch(self) -> None:
        """Draw a new order at the next sample."""
        self._fresh, self._ran_out = True, False

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """The next `batch_size` slots of the epoch, int64 ``[B]``; fewer at its end unless `drop_last`.

        Raises:
            ReplayBufferError: the storage is empty, or holds less than one batch with `drop_last`.
        """
        left = self._order.numel() - self._position
        if self._fresh or self._ran_out or left == 0 or (self.drop_last and left < batch_size):
            self._draw(len(storage), batch_size)
        stop = min(self._position + batch_size, self._order.numel())
        index = self._order[self._position : stop].clone()
        self._position = stop
        left = self._order.numel() - stop
        self._ran_out = left == 0 or (self.drop_last and left < batch_size)
        return index, {}

    def _draw(self, filled: int, batch_size: int) -> None:
        if filled == 0:
            raise ReplayBufferError("the storage is empty: add or extend before sampling")
        if self.drop_last and filled < batch_size:
            raise ReplayBufferError(
                f"drop_last=True leaves no batch: {filled} rows are stored, the batch size is {batch_size}. "
                "Store more rows, lower batch_size, or use drop_last=False."
            )
        self._order = torch.randperm(filled, generator=self.generator) if self.shuffle else torch.arange(filled)
        self._position, self._fresh, self._ran_out = 0, False, False

    def extend(self, index: Tensor) -> None:
        """Written rows start a new epoch."""
        if index.numel():
            self.begin_epoch()

    def empty(self) -> None:
        """Start over."""
        self._order, self._position = torch.empty(0, dtype=torch.int64), 0
        self.begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """The order of this epoch and the position in it."""
        return {"order": self._order, "position": self._position, "fresh": self._fresh, "ran_out": self._ran_out}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on where the saved sampler was."""
        self._order = state_dict["order"].clone()
        self._position = int(state_dict["position"])
        self._fresh, self._ran_out = bool(state_dict["fresh"]), bool(state_dict["ran_out"])
