"""HindsightTransform: gives sampled rows goals that were reached later, and the rewards that they then deserve."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.table import EpisodeTable
from rl_buffers.relabel.base import RowTransform, stored_entry
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.keys import Key, join, sibling

if TYPE_CHECKING:
    from rl_buffers.buffer import ReplayBuffer

__all__ = ["HindsightStrategy", "HindsightTransform"]


class HindsightStrategy(str, Enum):
    """Where a row's new goal is taken from."""

    FUTURE = "future"
    """A step of the same episode from the row's own on."""
    FINAL = "final"
    """The last step of the episode."""
    EPISODE = "episode"
    """Any step of the episode."""
    RANDOM = "random"
    """Any row of the buffer."""


class HindsightTransform(RowTransform):
    """Replaces the goals of a part of each sample by goals that were achieved, and recomputes their rewards.

    The new goal is what step j achieved: ("next", `achieved_goal_key`) of its row, the state after the action; where
    rows do not have that, `achieved_goal_key` of its root. An episode is what the buffer holds of it: it neither runs
    over the write cursor nor into the next one.

    Args:
        reward_fn: from a TensorDict ``[n]`` of rows with their new goals to rewards ``[n]`` or ``[n, 1]``.
        her_ratio: the part of a sample that is relabelled, in [0, 1]: ``int(B * her_ratio)`` rows, chosen at random.
        strategy: a :class:`HindsightStrategy` or its name.
        goal_key: the goal; ("next", `goal_key`) is replaced too, where rows have it.
        achieved_goal_key: what a state achieves.
        reward_key: where the new reward goes.
        end_key: what ends an episode.
        terminated_fn: like `reward_fn`, whether the row ends its episode under the new goal; by default end flags stay.

    Raises:
        ReplayBufferError: an unknown strategy, or a ratio outside of [0, 1].

    Andrychowicz et al., 2017, "Hindsight Experience Replay", section 3.2 and 4.5 (arXiv:1707.01495).
    """

    def __init__(
        self,
        reward_fn: Callable[[TensorDictBase], Tensor],
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = "future",
        goal_key: Key = "desired_goal",
        achieved_goal_key: Key = "achieved_goal",
        reward_key: Key = ("next", "reward"),
        end_key: Key = ("next", "done"),
        terminated_fn: Callable[[TensorDictBase], Tensor] | None = None,
    ) -> None:
        super().__init__(Boundaries(end_key=end_key))
        names = [known.value for known in HindsightStrategy]
        if strategy not in names or not 0.0 <= her_ratio <= 1.0:
            raise ReplayBufferError(
                f"strategy is one of {', '.join(names)} and her_ratio in [0, 1], got {strategy!r} and {her_ratio}"
            )
        self.reward_fn, self.terminated_fn = reward_fn, terminated_fn
        self.her_ratio, self.strategy = her_ratio, HindsightStrategy(strategy)
        self.goal_key, self.achieved_goal_key = goal_key, achieved_goal_key
        self.reward_key, self.end_key = reward_key, end_key

    def relabel(self, batch: TensorDictBase, slots: Tensor, buffer: ReplayBuffer) -> TensorDictBase:
        """Relabel a random part of the rows at `slots`."""
        n = int(slots.numel() * self.her_ratio)
        if n == 0:
            return batch
        if batch.get("steps_to_next_obs", None) is not None:
            raise ReplayBufferError(
                "the rows are n-step transitions: the rewards in their sums were for the old goal. Use one-step rows"
            )
        table = buffer.episodes(self.boundaries)
        table.check()
        chosen = torch.randperm(slots.numel(), generator=buffer.generator)[:n]
        source = self._sources(table, slots[chosen], len(buffer.storage), buffer.generator)
        rows = batch[chosen]
        goal = self._achieved(buffer, source, rows)
        rows.set(self.goal_key, goal)
        if rows.get(join("next", self.goal_key), None) is not None:
            rows.set(join("next", self.goal_key), goal)
        reward = self._computed(self.reward_fn, "reward_fn", rows, self.reward_key)
        rows.set(self.reward_key, reward)
        if self.terminated_fn is not None:
            self._end(rows, self._computed(self.terminated_fn, "terminated_fn", rows, self._terminated_key))
        for key in (self.goal_key, join("next", self.goal_key), self.reward_key, *self._ends):
            value = batch.get(key, None)
            if value is not None:
                batch.set(key, value.index_copy(0, chosen.to(value.device), rows.get(key)))
        return batch

    def _sources(self, table: EpisodeTable, slots: Tensor, filled: int, generator: torch.Generator | None) -> Tensor:
        """The slots of the steps whose achievements become goals."""
        place = table.locate(slots)
        if self.strategy is HindsightStrategy.RANDOM:
            return torch.randint(filled, slots.shape, generator=generator)
        if self.strategy is HindsightStrategy.FINAL:
            return table.shift(slots, place.left - 1)
        uniform = torch.rand(slots.shape, generator=generator, dtype=torch.float64)
        if self.strategy is HindsightStrategy.FUTURE:
            return table.shift(slots, (uniform * place.left).long())
        return table.shift(slots, (uniform * (place.offset + place.left)).long() - place.offset)

    def _achieved(self, buffer: ReplayBuffer, source: Tensor, rows: TensorDictBase) -> Tensor:
        goal = rows.get(self.goal_key, None)
        if goal is None:
            have = ", ".join(repr(key) for key in rows.keys(True, True))
            raise KeyMissingError(f"hindsight needs {self.goal_key!r}; the rows have {have}: name it with goal_key=...")
        after = join("next", self.achieved_goal_key)
        key = self.achieved_goal_key if rows.get(after, None) is None else after
        achieved = stored_entry(buffer, key, source, like=goal)
        if achieved.shape != goal.shape:
            raise ReplayBufferError(
                f"{key!r} is {list(achieved.shape[1:])} per row, {self.goal_key!r} is {list(goal.shape[1:])}: "
                "what is achieved has to be a goal"
            )
        return achieved.to(goal.dtype)

    @staticmethod
    def _computed(function: Callable[[TensorDictBase], Tensor], name: str, rows: TensorDictBase, key: Key) -> Tensor:
        old, new = rows.get(key, None), function(rows)
        shape = (rows.shape[0], 1) if old is None else tuple(old.shape)
        if new.numel() != torch.Size(shape).numel():
            raise ReplayBufferError(f"{name} gave {list(new.shape)} for {key!r} of shape {list(shape)}")
        return new.reshape(shape).to(new.dtype if old is None else old.dtype)

    @property
    def _terminated_key(self) -> Key:
        return sibling(self.end_key, "terminated")

    @property
    def _ends(self) -> list[Key]:
        return [] if self.terminated_fn is None else [self._terminated_key, sibling(self.end_key, "done")]

    def _end(self, rows: TensorDictBase, terminated: Tensor) -> None:
        truncated = rows.get(sibling(self.end_key, "truncated"), None)
        rows.set(self._terminated_key, terminated)
        rows.set(sibling(self.end_key, "done"), terminated if truncated is None else terminated | truncated)
