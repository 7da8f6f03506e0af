"""ConsumingSampler: each row is sampled a limited number of times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_core.buffers import Sampler, Storage
from rl_core.errors import ReplayBufferError

__all__ = ["ConsumingSampler"]


class ConsumingSampler(Sampler):
    """Draws uniformly among the rows that were drawn less than `max_sample_count` times since they were written.

    No row comes twice in a batch. The last batch is smaller where fewer rows are left, after which the sampler has run
    out until new rows are written; a used-up row makes place when the writer comes round to its slot. Give the storage
    room for what is written before it is sampled: :attr:`unused` counts rows that were overwritten before their time.

    Args:
        max_sample_count: how often a row may be drawn, at least 1.

    Example:
        >>> from rl_buffers import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=ConsumingSampler(), batch_size=3)
        >>> _ = buffer.extend(torch.arange(5))
        >>> [batch.numel() for batch in buffer]
        [3, 2]
    """

    def __init__(self, max_sample_count: int = 1) -> None:
        if max_sample_count < 1:
            raise ReplayBufferError(f"max_sample_count must be at least 1, got {max_sample_count}")
        self.max_sample_count = max_sample_count
        self.empty()

    def empty(self) -> None:
        """Forget all rows."""
        self.unused = 0
        """How many rows were overwritten that could still have been drawn."""
        self._count = torch.zeros(0, dtype=torch.int64)  # of each slot, how often it was drawn
        self._is_left = torch.zeros(0, dtype=torch.bool)  # of each slot, whether it can be drawn
        self._left = torch.zeros(0, dtype=torch.int64)  # the first `_n` are the slots that are left, in any order
        self._n = 0

    @property
    def left(self) -> int:
        """How many rows can still be drawn."""
        return self._n

    @property
    def ran_out(self) -> bool:
        """Whether no row is left."""
        return self._n == 0

    def extend(self, index: Tensor) -> None:
        """Let newly written rows be drawn."""
        if not index.numel():
            return
        self._grow(int(index.max()) + 1)
        self.unused += int(self._is_left[index].sum())
        self._add(index)

    def mark_update(self, index: Tensor) -> None:
        """Treat rows that were changed in place as new ones."""
        self._add(index)

    def _add(self, index: Tensor) -> None:
        self._count[index] = 0
        new = index[~self._is_left[index]].unique()
        stop = self._n + new.numel()
        self._left[self._n : stop] = new
        self._is_left[new] = True
        self._n = stop

    def _grow(self, slots: int) -> None:
        have = self._count.numel()
        if slots > have:
            more = max(slots, 2 * have) - have
            self._count = torch.cat([self._count, torch.zeros(more, dtype=torch.int64)])
            self._is_left = torch.cat([self._is_left, torch.zeros(more, dtype=torch.bool)])
            self._left = torch.cat([self._left, torch.zeros(more, dtype=torch.int64)])

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Up to `batch_size` different slots, int64 ``[B]``, with "sample_count" ``[B]``: how often each was drawn.

        Raises:
            ReplayBufferError: no row is left.
        """
        if self._n == 0:
            raise ReplayBufferError(
                "the storage is empty: add or extend before sampling"
                if len(storage) == 0
                else f"each of the {len(storage)} rows was sampled {self.max_sample_count} time(s), the most that is "
                "allowed: write more rows first, or let a rate limiter wait for them"
            )
        places = self._choose(min(batch_size, self._n))
        slots = self._left[places]
        counts = self._count[slots] + 1
        self._count[slots] = counts
        done = counts >= self.max_sample_count
        if bool(done.any()):
            self._remove(places[done])
        return slots, {"sample_count": counts}

    def _choose(self, n: int) -> Tensor:
        """`n` different numbers below `_n`, each set of them as likely as any other."""
        if 2 * n >= self._n:
            return torch.randperm(self._n, generator=self.generator)[:n]
        chosen: dict[int, None] = {}
        while len(chosen) < n:
            for place in torch.randint(self._n, (n - len(chosen),), generator=self.generator).tolist():
                chosen.setdefault(place)
        return torch.tensor(list(chosen))

    def _remove(self, places: Tensor) -> None:
        """Take slots out of those left; the last ones move to where they were."""
        gone = self._left[places]
        n = self._n - places.numel()
        tail = torch.arange(n, self._n)
        stays = tail[~torch.isin(tail, places)]
        self._left[places[places < n]] = self._left[stays]
        self._is_left[gone] = False
        self._n = n

    def state_dict(self) -> dict[str, Any]:
        """The counts, and which rows are left in which order."""
        return {"count": self._count, "left": self._left[: self._n], "unused": self.unused}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on with the saved counts."""
        self._count = state_dict["count"].clone()
        self._n = state_dict["left"].numel()
        self._left = torch.zeros_like(self._count)
        self._left[: self._n] = state_dict["left"]
        self._is_left = torch.zeros_like(self._count, dtype=torch.bool)
        self._is_left[state_dict["left"]] = True
        self.unused = int(state_dict["unused"])
