"""PrioritizedSliceSampler: slices whose starts are drawn in proportion to priorities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_buffers.episodes.table import EpisodeTable
from rl_buffers.samplers.prioritized import PrioritizedSampler
from rl_buffers.samplers.slices import SliceSampler
from rl_buffers.trees.layout import FAN, HEADER_WORDS, LEAF_WORDS
from rl_core.buffers import Storage
from rl_core.errors import ReplayBufferError

__all__ = ["PrioritizedSliceSampler"]

_ROUNDS = 8


class PrioritizedSliceSampler(SliceSampler, PrioritizedSampler):
    """Draws the first row of each slice as :class:`PrioritizedSampler` draws rows, among those from which a slice fits.

    A row whose episode ends too soon after it is not drawn, whatever its priority, and keeps it. Every row of a slice
    carries the importance weight of its first ("priority_weight", relative to the least priority of all rows) and its
    own "index_generation", so that priorities can be handed back for all rows of a batch.

    Args:
        max_capacity: the number of rows to make room for.
        alpha: exponent of priorities, >= 0.
        beta: exponent of the weights, >= 0.
        eps: added to raw priorities, >= 0.
        dtype: of the weights.
        reduction: how several priorities of one row become one.
        max_priority_within_buffer: see :class:`PrioritizedSampler`.
        stratified: see :class:`PrioritizedSampler`.
        **kwargs: the arguments of :class:`SliceSampler`; ``span`` may only reach over the end of an episode, and
            ``uniform_over`` has no effect.

    Raises:
        ReplayBufferError: arguments out of range, or a span to the left.

    Example:
        >>> from rl_buffers import LazyTensorStorage, TensorDictReplayBuffer
        >>> from tensordict import TensorDict
        >>> sampler = PrioritizedSliceSampler(10, alpha=1.0, beta=1.0, eps=0.0, slice_len=2)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=8)
        >>> done = torch.tensor([0, 0, 0, 1]).bool().unsqueeze(-1)
        >>> _ = buffer.extend(TensorDict({"t": torch.arange(4), "next": {"done": done}}, [4]))
        >>> buffer.update_priority(torch.arange(4), torch.tensor([0.0, 1.0, 0.0, 9.0]))
        >>> buffer.sample()["t"].tolist()
        [1, 2, 1, 2, 1, 2, 1, 2]

    Paper:
        Schaul, Quan, Antonoglou, Silver (2016), Prioritized Experience Replay, section 3.3-3.4, arXiv:1511.05952.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        *,
        max_priority_within_buffer: bool = True,
        stratified: bool = True,
        **kwargs: Any,
    ) -> None:
        SliceSampler.__init__(self, **kwargs)
        PrioritizedSampler.__init__(
            self, max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer, stratified=stratified
        )
        if self.span[0]:
            raise ReplayBufferError("the first row of a slice is what is drawn: span may only have a right side")

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Slots of the slices, int64 ``[B]``, with "priority_weight" ``[B]`` and "index_generation" int64 ``[B]``."""
        n, length = self.split(batch_size)
        table = self._table_of(storage)
        first, weight = self._draw_starts(table, n, length)
        counts = table.locate(first).left.clamp(max=length)
        slots, info = self._laid_out(table, first, counts, length)
        repeats = slots.numel() // n if slots.numel() == n * length else counts
        info["priority_weight"] = weight.repeat_interleave(repeats)
        info["index_generation"] = self._generations(slots)
        return slots, info

    def _draw_starts(self, table: EpisodeTable, n: int, length: int) -> tuple[Tensor, Tensor]:
        """Starts and their weights, ``[n]`` each: draws of rows, without those from which no slice fits."""
        firsts, weights, missing = [], [], n
        for attempt in range(_ROUNDS):
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator))
            many = missing if attempt == 0 else 4 * missing
            draw = self.tree.sample(many, seed, beta=self.beta, stratified=self.stratified, dtype=self.dtype)
            kept = self._fits(table, draw.slots, length).nonzero().squeeze(-1)[:missing]
            firsts.append(draw.slots[kept])
            weights.append(draw.weight[kept])
            missing -= kept.numel()
            if missing == 0:
                break
        else:
            first, weight = self._draw_among_all(table, missing, length)
            firsts.append(first)
            weights.append(weight)
        return torch.cat(firsts), torch.cat(weights)

    def _fits(self, table: EpisodeTable, slots: Tensor, length: int) -> Tensor:
        place = table.locate(slots)
        fits = place.left >= length - self.room(length)[1]
        if self.strict_length:
            return fits & (place.left + place.offset >= length)
        return fits | (place.offset == 0)

    def _draw_among_all(self, table: EpisodeTable, n: int, length: int) -> tuple[Tensor, Tensor]:
        """The same law where hardly any row that is drawn fits: look at all rows."""
        priority = self.tree.state_dict()["priority"]
        stored = priority * self._fits(table, torch.arange(priority.numel()), length)
        total = stored.cumsum(0)
        if total[-1] <= 0:
            raise ReplayBufferError(
                f"no episode has {length} rows from a row with a priority above zero on: the longest of {len(table)} "
                f"pieces has {int(table.lengths().max())}. Ask for shorter slices, store more rows, raise eps, or pass "
                "strict_length=False to get short episodes whole."
            )
        mass = torch.rand(n, generator=self.generator, dtype=torch.float64) * total[-1]
        below = torch.nextafter(total[-1], torch.zeros_like(total[-1]))  # the product may round up to the total
        first = torch.searchsorted(total, torch.minimum(mass, below), right=True)
        weight = (priority[first] / self.tree.stats().smallest) ** -self.beta
        return first, weight.to(self.dtype)

    def _generations(self, slots: Tensor) -> Tensor:
        """How often each slot was written, read from the tree's memory."""
        words = HEADER_WORDS + slots // FAN * LEAF_WORDS + FAN + slots % FAN
        return self.tree.memory.index_select(0, words)

    def extend(self, index: Tensor) -> None:
        """Give newly written rows the default priority."""
        SliceSampler.extend(self, index)
        PrioritizedSampler.extend(self, index)

    def mark_update(self, index: Tensor) -> None:
        """Treat rows that were changed in place as new ones."""
        self.extend(index)

    def empty(self) -> None:
        """Forget all rows."""
        SliceSampler.empty(self)
        PrioritizedSampler.empty(self)
