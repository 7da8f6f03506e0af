"""``MultiSyncCollector``: workers collect parts of a batch at the same time, and wait for each other at its end."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from tensordict import TensorDictBase

from rl_collectors.process.assembly import Piece, assembled, concatenated, version_column
from rl_collectors.process.multi import MultiCollector
from rl_collectors.trajectories import TrajectoryCounter
from rl_core.envs.base import EnvBase
from rl_core.envs.rollout import mark_truncated
from rl_core.errors import CollectorError
from rl_core.keys import join

__all__ = ["MultiSyncCollector"]


class MultiSyncCollector(MultiCollector):
    """Yields batches ``[N, *B, T]`` to which N worker processes contribute the same number of steps.

    ``frames_per_batch`` is the total over workers. Between two batches workers wait, so new weights hold for whole
    batches. A batch is copied once out of memory that the workers write into, and is the reader's.

    Args:
        create_env_fn: functions that make environments (or ``EnvRef``, or names such as ``"gym:CartPole-v1"``), one for
            each worker; or one of them, with `num_workers`. Lambdas and local functions need cloudpickle, or "fork".
        policy: what acts; each worker has a copy, which :meth:`update_policy_weights_` refreshes. None: random actions.
        policy_factory: makes the policy in each worker instead; one, or one for each.
        num_workers: how many, where `create_env_fn` is one function.
        frames_per_batch: environment steps in a batch, over all workers; a multiple of their environments.
        total_frames: environment steps in all; the last batch holds what remains. -1: no end.
        rounding: "up" rounds numbers of frames that do not divide; by default they raise.
        cat_results: "stack" (default) for ``[N, *B, T]``; a number to concatenate the workers' batches along that
            dimension of ``[*B, T]`` instead.
        preemptive_threshold: the share of workers, in (0, 1], that must have finished; the others then end their part
            with the steps they have. Steps that were not taken are zero, their trajectory id is -1, and
            ``("collector", "mask")`` is False there. Frames are counted as taken.
        device: default of `policy_device` and `env_device`; these may be lists, one for each worker.
        storing_device: where batches live; default the CPU.
        policy_device: where the policy acts.
        env_device: where environments' data live.
        create_env_kwargs: arguments for `create_env_fn`, once or for each worker.
        collector_class: what steps in each worker, a subclass of :class:`Collector`.
        max_frames_per_traj: truncate episodes after so many steps.
        init_random_frames: act at random for so many frames first, rounded up to whole batches.
        reset_at_each_iter: start new episodes with every batch.
        postproc: a function of each batch, called here.
        split_trajs: yield one padded row per trajectory.
        trajs_per_batch: yield whole trajectories, so many at a time; see :class:`Collector`.
        traj_format: of these, "padded" or "cat".
        track_traj_ids: write ``("collector", "traj_ids")``, unique over all workers.
        exploration_type: in force while the policy acts.
        set_truncated: mark each batch's last step as truncated where its episode goes on.
        replay_buffer: extend this buffer with each batch, and yield None.
        trust_policy: call the policy with a TensorDict without looking at its signature.
        compile_policy: compile the policy in each worker; True, or arguments of ``torch.compile``.
        cudagraph_policy: capture it in a CUDA graph.
        track_policy_version: write ``policy_version``, the version of the weights that each step was taken with.
        weight_sync_schemes: model id -> how its weights travel; default
            ``{"policy": SharedMemWeightSyncScheme()}``.
        update_at_each_batch: send the policy's weights before each batch.
        pre_collect_hook: called before each batch.
        post_collect_hook: called with each batch.
        init_fn: called first in each worker.
        num_sub_threads: torch's threads in each worker.
        mp_start_method: "forkserver" (the default where there is one) and "spawn" import ``__main__`` anew in each
            worker, so a script keeps its work under ``if __name__ == "__main__":``. "fork" needs no pickling; it is not
            safe beside threads or CUDA.
        timeout: seconds without any progress (a policy call, a phase of its work) after which a worker counts as
            hanging.

    Raises:
        CollectorError: budgets that do not divide; a worker that fails, dies or hangs, with its index, what it was
            doing and its traceback. All workers are stopped then.

    Every worker has random streams of its own, which hang from torch's generator here, or from :meth:`set_seed`.
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        cat_results: str | int = "stack",
        preemptive_threshold: float | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(cat_results, str) and cat_results != "stack":
            raise CollectorError(f"cat_results is {cat_results!r}; it is 'stack' or the number of a dimension")
        if preemptive_threshold is not None and not 0 < preemptive_threshold <= 1:
            raise CollectorError(f"preemptive_threshold is {preemptive_threshold}; it is a share of workers in (0, 1]")
        self.cat_results, self.preemptive_threshold = cat_results, preemptive_threshold
        super().__init__(create_env_fn, policy, **kwargs)
        self.delivery.masked = preemptive_threshold is not None

    def _chunk(self, frames_per_batch: int) -> int:
        frames = -(-frames_per_batch // self.num_workers)
        return frames if self.preemptive_threshold is None else max(1, frames // 16)

    def _rows_together(self) -> int:
        return self.num_workers * self._env_rows

    def _make_counters(self) -> list[TrajectoryCounter]:
        return [TrajectoryCounter(self._rows_together(), self._ids)]

    # ---------------------------------------------------------------- collecting
    def _collect(self) -> TensorDictBase | None:
        steps = self.budget.steps(self.frames)
        return self._batch(steps) if steps else None

    def _unbudgeted(self) -> TensorDictBase:
        return self._batch(self.budget.frames_per_batch // self.budget.rows)

    def _batch(self, steps: int) -> TensorDictBase:
        self._check_open()
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        if self.update_at_each_batch and self.iteration:
            self.update_policy_weights_()
        try:
            pieces = self._pieces(steps)
        except BaseException:  # an interrupt, too, leaves workers in the middle of an order
            self.shutdown(2.0)
            raise
        return self._joined(pieces)

    def _drain(self) -> None:
        """Between two batches no worker does anything."""

    def _pieces(self, steps: int) -> list[Piece]:
        random = self.frames < self.init_random_frames
        for worker in range(self.num_workers):
            self._order(worker, 0, steps, random)
        waiting = set(range(self.num_workers))
        enough = math.ceil((self.preemptive_threshold or 1.0) * self.num_workers)
        found: dict[int, Piece] = {}
        while waiting:
            worker, message = self.pool.receive(sorted(waiting))
            waiting.discard(worker)
            found[worker] = self._piece(worker, message)
            if waiting and len(found) == enough:
                for late in waiting:
                    self.pool.cut(late, self._orders[late])
        return [found[worker] for worker in range(self.num_workers)]

    def _joined(self, pieces: list[Piece]) -> TensorDictBase:
        batch = assembled(pieces, "stack")
        time = batch.shape[-1]
        taken = torch.tensor([piece.steps for piece in pieces])
        self.frames += int(taken.sum()) * self._env_rows
        self.iteration += 1
        lengths = taken.repeat_interleave(self._env_rows)
        if self.preemptive_threshold is not None:
            mask = (torch.arange(time) < lengths.unsqueeze(-1)).reshape(batch.shape)
            batch.set(("collector", "mask"), mask)
        if self._counters:
            (counter,) = self._counters
            done = batch.get(join("next", self.env_facts.end_groups[0].done))
            flat = done.reshape(*batch.shape, -1).any(-1).reshape(-1, time)
            for piece in pieces:
                if piece.filled.gathered.order.reset:
                    first = piece.worker * self._env_rows
                    counter.restart(list(range(first, first + self._env_rows)))
            batch.set(("collector", "traj_ids"), counter.number(flat, lengths).reshape(batch.shape))
            if self.delivery.episodes is not None and any(piece.filled.gathered.order.reset for piece in pieces):
                self.delivery.episodes.drop(batch["collector", "traj_ids"])
        if self.track_policy_version:
            batch.set("policy_version", version_column(pieces, batch.shape))
        if self.set_truncated:
            for worker, steps in enumerate(taken.tolist()):
                part = batch.select("next")[worker][..., :steps]
                mark_truncated(part, cast("EnvBase", self.env_facts))  # it asks for the end flags only
        return batch if self.cat_results == "stack" else concatenated(batch, int(self.cat_results))
