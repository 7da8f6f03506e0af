"""SliceSamplerWithoutReplacement: epochs in which each trajectory gives one slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_buffers.episodes.table import EpisodeTable
from rl_buffers.samplers.slices import SliceSampler
from rl_core.buffers import Storage
from rl_core.errors import ReplayBufferError

__all__ = ["SliceSamplerWithoutReplacement"]


class SliceSamplerWithoutReplacement(SliceSampler):
    """Gives one slice of each episode per epoch, at a random place of it, so that a batch has at most one of each.

    An epoch starts when iteration over the buffer starts, when the last one is used up, and after data were written.
    Its last batch has fewer slices where their number does not divide that of the episodes, unless `drop_last`.

    Args:
        drop_last: leave out a last batch that would be shorter; an epoch without one full batch raises.
        shuffle: ``False`` takes the episodes from the oldest to the newest, lane by lane.
        **kwargs: the arguments of :class:`SliceSampler`; ``uniform_over`` has no effect.
    """

    def __init__(self, *, drop_last: bool = False, shuffle: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drop_last, self.shuffle = drop_last, shuffle
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0
        self._fresh = True
        self._ran_out = False

    @property
    def ran_out(self) -> bool:
        """Whether the epoch is used up; the next sample starts another."""
        return self._ran_out

    def begin_epoch(self) -> None:
        """Draw a new order at the next sample."""
        self._fresh, self._ran_out = True, False

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Slots of the next slices of the epoch, int64 ``[B]``."""
        n, length = self.split(batch_size)
        table = self._table_of(storage)
        left = self._order.numel() - self._position
        if self._fresh or self._ran_out or left == 0 or (self.drop_last and left < n):
            self._begin(table, n, length)
        stop = min(self._position + n, self._order.numel())
        chosen = self._order[self._position : stop]
        self._position = stop
        left = self._order.numel() - stop
        self._ran_out = left == 0 or (self.drop_last and left < n)
        first, counts = table.slices_of(chosen, length, self.room(length), self.generator)
        return self._laid_out(table, first, counts, length)

    def _begin(self, table: EpisodeTable, n: int, length: int) -> None:
        order = table.by_age()
        lengths = table.lengths()
        if self.strict_length:
            order = order[lengths[order] >= length]
        if order.numel() == 0 or (self.drop_last and order.numel() < n):
            raise ReplayBufferError(
                f"{order.numel()} of {len(table)} episodes have {length} rows or more (the longest has "
                f"{int(lengths.max())}), a batch {'needs' if self.drop_last else 'has up to'} {n}. Ask for shorter or "
                "fewer slices, store more rows, or pass strict_length=False to get short episodes whole."
            )
        self._order = order[torch.randperm(order.numel(), generator=self.generator)] if self.shuffle else order
        self._position, self._fresh, self._ran_out = 0, False, False

    def extend(self, index: Tensor) -> None:
        """Written rows start a new epoch."""
        super().extend(index)
        if index.numel():
            self.begin_epoch()

    def mark_update(self, index: Tensor) -> None:
        """Changed rows start a new epoch: their end flags may be others."""
        super().mark_update(index)
        self.begin_epoch()

    def empty(self) -> None:
        """Start over."""
        super().empty()
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
