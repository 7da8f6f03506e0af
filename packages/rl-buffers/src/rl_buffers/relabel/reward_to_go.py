"""Reward2GoTransform: the rewards that are still to come in an episode, computed when its rows are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.table import EpisodeTable
from rl_buffers.relabel.base import RowTransform, stored_entry
from rl_buffers.relabel.n_step_entries import next_keys
from rl_core.errors import ReplayBufferError
from rl_core.keys import Key, as_keys

if TYPE_CHECKING:
    from rl_buffers.buffer import ReplayBuffer

__all__ = ["Reward2GoTransform"]


class Reward2GoTransform(RowTransform):
    """Adds to each sampled row the discounted sum of its own and all later rewards of its episode.

    ``out_t = sum_{i >= 0} gamma^i r_{t+i}``, up to the end of the episode. A sum costs time of the rows that it adds.

    Args:
        gamma: discount, in [0, 1].
        in_keys: rewards; default ("next", "reward").
        out_keys: where the sums go; default "reward_to_go".
        done_key: what ends an episode; default as in :class:`~rl_buffers.episodes.boundaries.Boundaries`.
        truncated_key: a second flag that ends one.
        unfinished: "raise", or "partial" to sum up what is there of an episode that is still being written, or was cut
            off by the write cursor.

    Raises:
        ReplayBufferError: arguments out of range.

    Example:
        >>> from rl_buffers import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(10),
        ...     sampler=SamplerWithoutReplacement(shuffle=False),
        ...     transform=Reward2GoTransform(gamma=0.5),
        ...     batch_size=3,
        ... )
        >>> done = torch.tensor([0, 0, 1]).bool().unsqueeze(-1)
        >>> _ = buffer.extend(TensorDict({"next": {"reward": torch.ones(3, 1), "done": done}}, [3]))
        >>> buffer.sample()["reward_to_go"].flatten()
        tensor([1.7500, 1.5000, 1.0000])

    Chen et al., 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling", section 3
    (arXiv:2106.01345).
    """

    def __init__(
        self,
        gamma: float = 1.0,
        in_keys: Key | Sequence[Key] | None = None,
        out_keys: Key | Sequence[Key] | None = None,
        done_key: Key | None = None,
        truncated_key: Key | None = None,
        *,
        unfinished: str = "raise",
    ) -> None:
        ends = [key for key in (done_key, truncated_key) if key is not None]
        super().__init__(Boundaries(end_keys=next_keys(ends, "done") if ends else None))
        self.in_keys = next_keys(in_keys, "reward")
        self.out_keys = as_keys("reward_to_go" if out_keys is None else out_keys)
        if unfinished not in ("raise", "partial") or not 0.0 <= gamma <= 1.0:
            raise ReplayBufferError(
                f"gamma is in [0, 1] and unfinished is 'raise' or 'partial', got {gamma} and {unfinished!r}"
            )
        if len(self.in_keys) != len(self.out_keys):
            raise ReplayBufferError(
                f"{len(self.in_keys)} rewards need as many out_keys, got {self.out_keys}: name them with out_keys=[...]"
            )
        self.gamma, self.unfinished = gamma, unfinished

    def relabel(self, batch: TensorDictBase, slots: Tensor, buffer: ReplayBuffer) -> TensorDictBase:
        """Add the returns to go of the rows at `slots`."""
        table = buffer.episodes(self.boundaries)
        table.check()
        if self.unfinished == "raise" and not bool(table.finished(slots).all()):
            slot = int(slots[~table.finished(slots)][0])
            raise ReplayBufferError(
                f"the episode of the row at slot {slot} has no end in the buffer, so that its reward to go is not "
                "known: write whole episodes, or pass unfinished='partial' to sum up what is there"
            )
        left = table.locate(slots).left
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            total = _sums_to_come(buffer, table, key, slots, left, self.gamma)
            batch.set(out_key, total if batch.device is None else total.to(batch.device))
        return batch


def _sums_to_come(
    buffer: ReplayBuffer, table: EpisodeTable, key: Key, slots: Tensor, left: Tensor, gamma: float
) -> Tensor:
    """``sum_{i < left} gamma^i r_{t+i}`` of each row, ``[B, ...]`` in the reward's dtype, summed in float64."""
    window = table.expand(slots, left)
    reward = stored_entry(buffer, key, window)
    row = torch.arange(slots.numel()).repeat_interleave(left)
    power = torch.arange(window.numel()) - (left.cumsum(0) - left).repeat_interleave(left)
    weight = (gamma ** power.double()).to(reward.device)
    weighted = reward.double() * weight.reshape(-1, *(1 for _ in reward.shape[1:]))
    total = weighted.new_zeros(slots.numel(), *reward.shape[1:])
    return total.index_add_(0, row.to(reward.device), weighted).to(reward.dtype)
