"""``PromptStream``: prompts for resets, repeated in groups, each occurrence with a number of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rl_core.errors import SpecError
from rl_llm.envs.lengths import LengthPolicy
from rl_llm.envs.sources import Block, BlockSource, Sample

__all__ = ["PromptStream"]

_PATIENCE = 10_000


class PromptStream:
    """Samples of a source, each given ``repeats`` times, in a queue of one block.

    Every occurrence of a sample gets the next ``group_id``: the same text drawn twice, by a duplicate in the data or in
    two epochs, makes two groups.

    Args:
        source: blocks of samples.
        repeats: how often each sample is given; None: once.
        group_repeats: the repeats of a sample follow each other; else a block is gone through ``repeats`` times.
        prepare: changes a sample (renames columns); applied first.
        lengths: what to do with prompts that are too long.
    """

    def __init__(
        self,
        source: BlockSource,
        *,
        repeats: int | None = None,
        group_repeats: bool = False,
        prepare: Callable[[Sample], Sample] | None = None,
        lengths: LengthPolicy | None = None,
    ) -> None:
        if repeats is not None and repeats < 1:
            raise SpecError(f"repeats={repeats}; it is at least 1, or None")
        self.source, self.repeats, self.group_repeats = source, repeats or 1, group_repeats
        self.prepare, self.lengths = prepare, lengths
        self.next_group = 0
        self._queue: deque[tuple[int, Sample]] = deque()
        self._taken = 0
        self._begin = self._mark()

    def _mark(self) -> dict[str, Any]:
        return {"source": self.source.state_dict(), "next_group": self.next_group}

    def take(self, count: int) -> list[tuple[int, Sample]]:
        """The next ``count`` prompts, as pairs of group id and sample."""
        taken = []
        for _ in range(count):
            if not self._queue:
                self._fill()
            taken.append(self._queue.popleft())
            self._taken += 1
        return taken

    def _fill(self) -> None:
        self._begin, self._taken = self._mark(), 0
        kept: Block = []
        for _ in range(_PATIENCE):
            kept = [sample for raw in self.source.next_block() if (sample := self._prepared(raw)) is not None]
            if kept:
                break
        if not kept:
            raise SpecError(
                f"no prompt of {_PATIENCE} blocks is short enough ({self.lengths}); raise the limit or truncate prompts"
            )
        numbered = list(enumerate(kept, start=self.next_group))
        self.next_group += len(kept)
        if self.group_repeats:
            self._queue.extend(pair for pair in numbered for _ in range(self.repeats))
        else:
            self._queue.extend(pair for _ in range(self.repeats) for pair in numbered)

    def _prepared(self, raw: Sample) -> Sample | None:
        sample = dict(raw) if self.prepare is None else self.prepare(dict(raw))
        return sample if self.lengths is None else self.lengths.apply(sample)

    def restart(self, seed: int | None = None) -> None:
        """Begin anew (in the order of another seed, where the source has an order of its own)."""
        if seed is None:
            fresh = {**self.source.state_dict(), "epoch": 0, "place": 0}
            self.source.load_state_dict(fresh)
        else:
            self.source.reseed(seed)
        self._queue.clear()
        self.next_group = 0
        self._begin, self._taken = self._mark(), 0

    def state_dict(self) -> dict[str, Any]:
        """Where the current block began, and how many of its prompts were taken."""
        return {**self._begin, "taken": self._taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the state was taken: the block is read again and its taken prompts are skipped."""
        self._queue.clear()
        self.source.load_state_dict(state_dict["source"])
        self.next_group = state_dict["next_group"]
        self._begin, self._taken = self._mark(), 0
        if state_dict["taken"]:
            self.take(state_dict["taken"])
