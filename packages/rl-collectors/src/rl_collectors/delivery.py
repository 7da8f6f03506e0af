"""From a collected batch to what the reader gets: storage device, trajectories, ``postproc``, hook, buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_collectors.episodes import EpisodeBatcher, flat_trajectories, padded_trajectories
from rl_collectors.split import split_trajectories
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["Delivery"]

_FORMATS = ("padded", "cat")


class Delivery:
    """The last steps of collecting, the same in one process and in many.

    Args:
        storing_device: where batches live.
        split_trajs: one padded row per piece of a trajectory.
        trajs_per_batch: only trajectories that have ended, so many at a time.
        traj_format: how these are given: "padded" ``[n, T_max]``, or "cat" ``[sum T_i]``.
        postproc: a function of each batch.
        post_collect_hook: called with each batch.
        replay_buffer: gets each batch, in place of the reader.
        tracked: whether batches have trajectory ids.
    """

    def __init__(
        self,
        *,
        storing_device: torch.device | None = None,
        split_trajs: bool = False,
        trajs_per_batch: int | None = None,
        traj_format: str = "padded",
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        post_collect_hook: Callable[[TensorDictBase], Any] | None = None,
        replay_buffer: Any = None,
        tracked: bool = True,
    ) -> None:
        self.storing_device, self.split_trajs = storing_device, split_trajs
        self.postproc, self.post_collect_hook = postproc, post_collect_hook
        self.replay_buffer = replay_buffer
        self.trajs_per_batch, self.traj_format = trajs_per_batch, traj_format
        self.episodes: EpisodeBatcher | None = None
        self.masked = False  # whether batches hold steps that were not taken, with ("collector", "mask")
        if traj_format not in _FORMATS:
            raise CollectorError(f"traj_format is {traj_format!r}; it is one of {', '.join(map(repr, _FORMATS))}")
        if trajs_per_batch is not None:
            if trajs_per_batch < 1:
                raise CollectorError(f"trajs_per_batch is {trajs_per_batch}; a batch holds at least one trajectory")
            if split_trajs:
                raise CollectorError("trajs_per_batch gives whole trajectories already; leave split_trajs out")
            if not tracked:
                raise CollectorError("trajs_per_batch follows trajectories by their ids; leave track_traj_ids=True")

    def follow(self, done_key: Key) -> None:
        """Say where the end flag of the environment lies (below "next")."""
        if self.trajs_per_batch is not None and self.episodes is None:
            self.episodes = EpisodeBatcher(done_key)

    def give(self, batch: TensorDictBase) -> Iterator[TensorDictBase | None]:
        """What the reader gets for a batch: one, with ``trajs_per_batch`` any number; None where a buffer gets it."""
        if self.storing_device is not None:
            batch = batch.to(self.storing_device)
        if self.episodes is None:
            yield self._hand_over(self._split(batch) if self.split_trajs else batch)
            return
        self.episodes.add(batch)
        yield from self._whole_trajectories(self.trajs_per_batch or 1)

    def _split(self, batch: TensorDictBase) -> TensorDictBase:
        split = split_trajectories(batch, prefix="collector")
        return split[split.get(("collector", "traj_ids"))[:, 0] >= 0] if self.masked else split

    def finish(self) -> Iterator[TensorDictBase | None]:
        """At the end of the run: the trajectories that have ended and are fewer than ``trajs_per_batch``."""
        if self.episodes is not None and self.replay_buffer is None:
            yield from self._whole_trajectories(1)

    def _whole_trajectories(self, at_least: int) -> Iterator[TensorDictBase | None]:
        assert self.episodes is not None and self.trajs_per_batch is not None
        if self.replay_buffer is not None:
            for one in self.episodes.take(len(self.episodes.ended)):
                self._hand_over(flat_trajectories([one]))
            yield None
            return
        while len(self.episodes.ended) >= at_least:
            whole = self.episodes.take(self.trajs_per_batch)
            yield self._hand_over(
                padded_trajectories(whole) if self.traj_format == "padded" else flat_trajectories(whole)
            )

    def _hand_over(self, batch: TensorDictBase) -> TensorDictBase | None:
        if self.postproc is not None:
            batch = self.postproc(batch)
        if self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        if self.replay_buffer is None:
            return batch
        if self.masked and not self.split_trajs and self.episodes is None:
            batch = batch[batch.get(("collector", "mask"))]
        self.replay_buffer.extend(batch.flatten(0, -2) if batch.ndim > 2 else batch)
        return None

    def state_dict(self) -> dict[str, Any]:
        """The pieces of trajectories that wait for their end."""
        return {} if self.episodes is None else self.episodes.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        if self.episodes is not None and state_dict:
            self.episodes.load_state_dict(state_dict)
