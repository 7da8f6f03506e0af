"""MultiStepTransform: n-step returns, computed for the sampled rows from the rows that follow them in the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.collate import stack_rows
from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.relabel.base import RowTransform, next_node, stored_entry
from rl_buffers.relabel.n_step_entries import check_n_step, next_keys, write_n_step
from rl_buffers.rows import flatten
from rl_core.keys import END_NAMES, Key, as_path

if TYPE_CHECKING:
    from rl_buffers.buffer import ReplayBuffer

__all__ = ["MultiStepTransform"]


class MultiStepTransform(RowTransform):
    """Makes n-step transitions of a buffer's samples.

    For a row at time t, with k the smaller of n and the number of rows up to the end of its episode (or up to the
    newest row)::

        next.reward = sum_{i<k} gamma^i r_{t+i}        next.* = those of step t + k - 1

    End flags move with the rest of "next", so that a return which ends in a terminal state is not bootstrapped. The
    batch also gets "steps_to_next_obs" (k), "gamma" (``gamma ** k``), "nonterminal" and ("next", "original_reward");
    losses raise their own gamma to "steps_to_next_obs". Nothing is held back when data are written.

    Args:
        n_steps: n, at least 1.
        gamma: discount, in [0, 1].
        reward_keys: rewards under "next"; default "reward".
        done_keys: what ends an episode; default as in :class:`~rl_buffers.episodes.boundaries.Boundaries`.
        landing_ends: ``False`` keeps the end flags of step t, as TorchRL does: returns of the last n - 1 steps before a
            terminal state are then bootstrapped from it.

    Raises:
        ReplayBufferError: `n_steps` or `gamma` is out of range.

    Example:
        >>> from rl_buffers import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(10),
        ...     sampler=SamplerWithoutReplacement(shuffle=False),
        ...     transform=MultiStepTransform(3, 0.9),
        ...     batch_size=4,
        ... )
        >>> done = torch.tensor([0, 0, 0, 1]).bool().unsqueeze(-1)
        >>> nxt = {"reward": torch.ones(4, 1), "done": done, "terminated": done}
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(4), "next": nxt}, [4]))
        >>> batch = buffer.sample()
        >>> batch["next", "reward"].flatten(), batch["next", "terminated"].flatten().tolist()
        (tensor([2.7100, 2.7100, 1.9000, 1.0000]), [False, True, True, True])

    Sutton, 1988, "Learning to Predict by the Methods of Temporal Differences".
    """

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Key | Sequence[Key] | None = None,
        done_keys: Key | Sequence[Key] | None = None,
        landing_ends: bool = True,
    ) -> None:
        check_n_step(n_steps, gamma)
        super().__init__(Boundaries(end_keys=None if done_keys is None else next_keys(done_keys, "done")))
        self.n_steps, self.gamma = n_steps, gamma
        self.reward_keys = next_keys(reward_keys, "reward")
        self.landing_ends = landing_ends

    def relabel(self, batch: TensorDictBase, slots: Tensor, buffer: ReplayBuffer) -> TensorDictBase:
        """N-step transitions of the rows at `slots`."""
        nxt = next_node(batch, type(self).__name__)
        table = buffer.episodes(self.boundaries)
        table.check()
        steps = table.locate(slots).left.clamp(max=self.n_steps)
        # Rows after the last of a window are that row again, with weight 0; so the last column is where it lands.
        window = table.expand(slots, steps, width=self.n_steps).reshape(-1, self.n_steps)
        place = torch.arange(self.n_steps)
        weight = torch.where(place < steps.unsqueeze(-1), self.gamma ** place.double(), 0.0)
        sums = [(key, _weighted_sum(stored_entry(buffer, key, window.flatten()), weight)) for key in self.reward_keys]
        if self.n_steps > 1:
            self._land(nxt, window[:, -1].contiguous(), buffer)
        write_n_step(batch, steps, self.gamma, sums)
        return batch

    def _land(self, nxt: TensorDictBase, landing: Tensor, buffer: ReplayBuffer) -> None:
        """Give "next" the entries of the landing rows, rewards excepted."""
        found = flatten(nxt)
        stays = {as_path(key)[1:] for key in self.reward_keys}
        for path, value in found.tensors.items():
            if path not in stays and (self.landing_ends or path[-1] not in END_NAMES):
                nxt.set(path, stored_entry(buffer, ("next", *path), landing, like=value))
        if found.objects:  # text and the like has no column of its own
            rows = buffer.storage.get(landing)
            landed = flatten((stack_rows(rows) if isinstance(rows, list) else rows).get("next"))
            for path in found.objects:
                nxt.set(path, landed.objects[path])


def _weighted_sum(reward: Tensor, weight: Tensor) -> Tensor:
    """``sum_i w_i r_i`` of each window: rewards ``[B * n, ...]``, weights ``[B, n]`` -> ``[B, ...]``, in float64."""
    B, n = weight.shape
    rows = reward.reshape(B, n, -1).double() * weight.unsqueeze(-1).to(reward.device)
    return rows.sum(1).reshape(B, *reward.shape[1:]).to(reward.dtype)
