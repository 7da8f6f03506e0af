"""``MultiAsyncCollector``: workers collect without waiting for each other, nor for the reader."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar, cast

from tensordict import TensorDict, TensorDictBase

from rl_collectors.process.assembly import Piece, assembled, version_column
from rl_collectors.process.multi import MultiCollector
from rl_collectors.trajectories import TrajectoryCounter
from rl_core.envs.base import EnvBase
from rl_core.envs.rollout import mark_truncated
from rl_core.errors import CollectorError
from rl_core.keys import join

__all__ = ["MultiAsyncCollector"]


class MultiAsyncCollector(MultiCollector):
    """Yields batches ``[*B, T]`` of one worker each, in the order in which they are finished.

    ``frames_per_batch`` is that of each batch, so of one worker. A worker has up to two batches ready or under way: it
    collects while the reader trains, and waits when both are unread. So after an update of the weights two batches of
    each worker may still hold steps taken with older ones; ``track_policy_version`` tells which. Batches are copied
    once out of memory that the workers write into, and are the reader's.

    Args:
        create_env_fn: functions that make environments (or ``EnvRef``, or names), one for each worker; or one of them,
            with `num_workers`.
        policy: what acts; each worker has a copy. None: random actions.
        **kwargs: those of :class:`MultiSyncCollector`, except `cat_results` and `preemptive_threshold`.
            `frames_per_batch` is a multiple of the environments of one worker. A `replay_buffer` gets its rows in the
            order in which batches are finished, so its storage has one dimension.

    Raises:
        CollectorError: as for :class:`MultiSyncCollector`.
    """

    slots: ClassVar[int] = 2

    def __init__(self, create_env_fn: Any, policy: Any = None, **kwargs: Any) -> None:
        ndim: int = getattr(getattr(kwargs.get("replay_buffer"), "storage", None), "ndim", 1)
        if ndim > 1:
            raise CollectorError(
                f"the buffer's storage has ndim={ndim}, one lane for each environment; batches of asynchronous "
                "workers come in no fixed order. Use a storage of ndim=1, or MultiSyncCollector"
            )
        self._held: deque[TensorDictBase] = deque()
        self._issued = 0
        super().__init__(create_env_fn, policy, **kwargs)
        self._free = [list(range(self.slots)) for _ in range(self.num_workers)]
        self._awaited = [0] * self.num_workers

    def _chunk(self, frames_per_batch: int) -> int:
        return frames_per_batch

    def _rows_together(self) -> int:
        return self._env_rows

    def _make_counters(self) -> list[TrajectoryCounter]:
        return [TrajectoryCounter(self._env_rows, self._ids) for _ in range(self.num_workers)]

    # ---------------------------------------------------------------- collecting
    def _collect(self) -> TensorDictBase | None:
        self._check_open()
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        if self.update_at_each_batch and self.iteration:
            self.update_policy_weights_()
        try:
            if not self._held:
                self._hire()
                if any(self._awaited):
                    self._held.append(self._take())
                    self._hire()
        except BaseException:  # an interrupt, too, may leave a message half read
            self.shutdown(2.0)
            raise
        if not self._held:
            return None
        batch = self._held.popleft()
        self.frames += batch.numel()
        self.iteration += 1
        return batch

    def _unbudgeted(self) -> TensorDictBase:
        batch = self._collect()
        if batch is None:
            self._order_one(self.iteration % self.num_workers, self.budget.frames_per_batch // self.budget.rows)
            batch = self._collect()
            assert batch is not None
        return batch

    def _hire(self) -> None:
        """Orders for every free slot, until the budget is issued; workers with the fewest orders come first."""
        for _ in range(self.slots):
            for worker in range(self.num_workers):
                steps = self.budget.steps(self._issued)
                if steps and self._free[worker]:
                    self._order_one(worker, steps)

    def _order_one(self, worker: int, steps: int) -> None:
        self._order(worker, self._free[worker].pop(0), steps, self._issued < self.init_random_frames)
        self._awaited[worker] += 1
        self._issued += steps * self._env_rows

    def _take(self) -> TensorDictBase:
        """The next batch that is finished, copied; its slot is free then."""
        busy = [worker for worker, count in enumerate(self._awaited) if count]
        worker, message = self.pool.receive(busy)
        piece = self._piece(worker, message)
        self._awaited[worker] -= 1
        batch = self._own(piece)
        self._free[worker].append(piece.filled.slot)
        return batch

    def _own(self, piece: Piece) -> TensorDictBase:
        batch = assembled([piece])
        if self._counters:
            counter = self._counters[piece.worker]
            if piece.filled.gathered.order.reset:
                counter.restart()
            done = batch.get(join("next", self.env_facts.end_groups[0].done))
            flat = done.reshape(*batch.shape, -1).any(-1).reshape(-1, batch.shape[-1])
            batch.set(("collector", "traj_ids"), counter.number(flat).reshape(batch.shape))
        if self.track_policy_version:
            batch.set("policy_version", version_column([piece], batch.shape))
        if self.set_truncated:
            mark_truncated(batch, cast("EnvBase", self.env_facts))  # it asks for the end flags only
        return batch

    def _drain(self) -> None:
        while any(self._awaited):
            self._held.append(self._take())

    # ---------------------------------------------------------------- checkpoints
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        held = [batch.to_dict() | {"batch_size": list(batch.batch_size)} for batch in self._held]
        return {**state, "held": held, "issued": self._issued}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._issued = int(state_dict["issued"])
        self._held.clear()
        for saved in state_dict["held"]:
            entries = {name: value for name, value in saved.items() if name != "batch_size"}
            size = saved["batch_size"]
            batch = TensorDict.from_dict(entries, batch_size=size)
            batch.names = [*([None] * (len(size) - 1)), "time"]
            self._held.append(batch)
