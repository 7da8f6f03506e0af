"""``AsyncBatchedCollector``: many environments step at their own pace, one policy acts for whichever of them wait."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_collectors.budget import FrameBudget
from rl_collectors.delivery import Delivery
from rl_collectors.inference.client import PolicyClient
from rl_collectors.inference.crews import EnvCrew
from rl_collectors.inference.hiring import end, env_for_keys, hired_crew, known_backend
from rl_collectors.inference.server import InferenceServer
from rl_collectors.making import as_device
from rl_collectors.process.per_worker import chosen_workers, per_worker, worker_sources
from rl_collectors.process.settings import EnvFacts
from rl_collectors.running import RunningCollector
from rl_collectors.trajectories import TrajectoryCounter
from rl_collectors.weights.scheme import WeightSyncScheme
from rl_core.envs.base import EnvBase
from rl_core.envs.rollout import mark_truncated
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.exploration import ExplorationType
from rl_core.keys import join
from rl_core.training.seeding import seed_generator, spawn_seeds

__all__ = ["AsyncBatchedCollector"]


class AsyncBatchedCollector(RunningCollector):
    """Yields batches ``[N, *B, T]``, one row for each of N environments, whose actions come from one served policy.

    Each environment steps in a worker of its own and asks an :class:`~rl_collectors.InferenceServer` to act; those that
    wait at the same time share a call of the policy. Within a batch nobody waits for the slowest; at its end all do, so
    an update of the weights holds for whole batches.

    Args:
        create_env_fn: makers of environments (functions, ``EnvRef``, names), one for each worker; or one of them, with
            `num_workers`.
        policy: what acts; a copy of it, which :meth:`update_policy_weights_` refreshes. None: random actions.
        policy_factory: makes the policy instead.
        num_workers: how many workers, where `create_env_fn` is one maker.
        frames_per_batch: environment steps in a batch; a multiple of the number of environments.
        total_frames: environment steps in all; -1: no end.
        rounding: "up" rounds numbers of frames that do not divide; by default they raise.
        max_batch_size: rows in a call of the policy at most.
        min_batch_size: rows that are worth a call.
        server_timeout: seconds that a request waits for others; see :class:`~rl_collectors.InferenceServer`.
        backend: default of the two below, "thread".
        env_backend: "thread": environments that sleep or leave the interpreter while they step; "process": those that
            compute in Python.
        policy_backend: "thread" serves in this process, "process" in one of its own.
        device: default of `policy_device` and `storing_device`.
        policy_device: where the policy acts.
        storing_device: where batches live.
        env_device: where the environments' data live.
        create_env_kwargs: arguments of the makers, for all or a list with one entry for each.
        max_frames_per_traj: truncate episodes after so many steps (appends ``StepCounter``, from rl-envs).
        init_random_frames: act at random for so many frames first, rounded up to whole batches.
        reset_at_each_iter: start new episodes with every batch.
        postproc: a function of each batch.
        split_trajs: one padded row per piece of a trajectory.
        trajs_per_batch: whole trajectories, so many at a time.
        traj_format: how these come, "padded" or "cat".
        track_traj_ids: write ``("collector", "traj_ids")``, over all workers in the order in which episodes start.
        exploration_type: in force while the policy acts.
        set_truncated: mark each batch's last step as truncated where its episode goes on.
        replay_buffer: extend this buffer with each batch, and yield None.
        track_policy_version: write ``policy_version``, int64 ``[N, *B, T]``, that of the weights each step was taken
            with.
        weight_sync: how weights reach a `policy_backend` "process".
        pre_collect_hook: called before each batch.
        post_collect_hook: called with each batch.
        mp_start_method: of processes; see :class:`~rl_collectors.MultiSyncCollector`.
        timeout: seconds without any progress after which a worker, or the policy, counts as hanging.

    Raises:
        CollectorError: budgets that do not divide; a worker, the policy or its server that fails, dies or hangs, with
            what it was doing and its traceback. The collector is shut down then.

    Example:
        >>> from rl_core.testing import ArrayCountingEnv
        >>> from rl_core.testing.collector_kit import constant_policy
        >>> makers = [lambda: ArrayCountingEnv(length=3)] * 2
        >>> with AsyncBatchedCollector(makers, constant_policy(0.5), frames_per_batch=8, total_frames=8) as collector:
        ...     for batch in collector:
        ...         print(batch["collector", "traj_ids"].tolist(), batch["action"].flatten().unique().tolist())
        [[0, 0, 0, 2], [1, 1, 1, 3]] [0.5]
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | None = None,
        num_workers: int | None = None,
        frames_per_batch: int,
        total_frames: int | None = -1,
        rounding: str | None = None,
        max_batch_size: int = 64,
        min_batch_size: int = 1,
        server_timeout: float = 0.01,
        backend: str | None = None,
        env_backend: str | None = None,
        policy_backend: str | None = None,
        device: torch.device | str | None = None,
        policy_device: torch.device | str | None = None,
        storing_device: torch.device | str | None = None,
        env_device: Any = None,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = None,
        reset_at_each_iter: bool = False,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        split_trajs: bool | None = None,
        trajs_per_batch: int | None = None,
        traj_format: str = "padded",
        track_traj_ids: bool = True,
        exploration_type: ExplorationType | None = ExplorationType.RANDOM,
        set_truncated: bool = False,
        replay_buffer: Any = None,
        track_policy_version: bool = False,
        weight_sync: WeightSyncScheme | None = None,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[TensorDictBase], Any] | None = None,
        mp_start_method: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        super().__init__()
        self.closed = True  # until there is something to close
        makers = worker_sources(create_env_fn, num_workers)
        self.num_workers = len(makers)
        self.policy = policy
        self.delivery = Delivery(
            storing_device=as_device(storing_device, device), split_trajs=bool(split_trajs),
            trajs_per_batch=trajs_per_batch, traj_format=traj_format, postproc=postproc,
            post_collect_hook=post_collect_hook, replay_buffer=replay_buffer, tracked=track_traj_ids,
        )  # fmt: skip
        self.env_backend = known_backend(env_backend or backend or "thread", "env_backend")
        self.policy_backend = known_backend(policy_backend or backend or "thread", "policy_backend")
        self.set_truncated, self.track_policy_version = set_truncated, track_policy_version
        self.init_random_frames, self.reset_at_each_iter = init_random_frames or 0, reset_at_each_iter
        self.pre_collect_hook = pre_collect_hook
        self.frames, self.iteration = 0, 0
        self._began = time.monotonic()
        self._updates = 0
        self._reset_next: set[int] = set()
        kwargs = per_worker(create_env_kwargs, self.num_workers)
        self.server: InferenceServer | None = None
        if policy is not None or policy_factory is not None:
            self.server = InferenceServer(
                policy, policy_factory=policy_factory,
                create_env_fn=env_for_keys(policy, makers[0], kwargs[0]),
                max_batch_size=max_batch_size, min_batch_size=min_batch_size, timeout=server_timeout,
                device=as_device(policy_device, device), exploration_type=exploration_type,
                backend=self.policy_backend, weight_sync=weight_sync, mp_start_method=mp_start_method,
                policy_version_key="policy_version" if track_policy_version else None, answer_timeout=timeout,
            )  # fmt: skip
        self._crew: EnvCrew | None = None
        self._finalizer: Any = None
        try:
            self._crew = hired_crew(
                self.env_backend, makers, self._client(), frames_per_batch=frames_per_batch, create_env_kwargs=kwargs,
                env_devices=per_worker(env_device, self.num_workers), mp_start_method=mp_start_method, timeout=timeout,
                max_frames_per_traj=max_frames_per_traj, exploration_type=exploration_type,
            )  # fmt: skip
            self._adopt(self._crew.facts, frames_per_batch, total_frames, rounding)
        except BaseException:
            end(self._crew, self.server, 1.0)
            raise
        self._counter = TrajectoryCounter(self.budget.rows) if track_traj_ids else None
        self._finalizer = weakref.finalize(self, end, self._crew, self.server, 1.0)
        self.closed = False

    def _client(self) -> PolicyClient | None:
        if self.server is None:
            return None
        self.server.start()
        return self.server.client(remote="process" in (self.env_backend, self.policy_backend))

    def _adopt(self, facts: EnvFacts, frames_per_batch: int, total_frames: int | None, rounding: str | None) -> None:
        """Fit the budget to what the workers have made."""
        self.env_facts = facts
        if self.set_truncated and any(group.truncated is None for group in facts.end_groups):
            raise CollectorError(
                f"set_truncated needs the end flag 'truncated', which {facts.name} does not have; append "
                "StepCounter(max_steps=...) or declare it in the done spec"
            )
        rows = self.num_workers * facts.batch_size.numel()
        self.budget = FrameBudget.checked(rows, frames_per_batch, total_frames, rounding)
        self.delivery.follow(facts.end_groups[0].done)

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
        assert self._crew is not None
        random = self.frames < self.init_random_frames
        fresh = set(range(self.num_workers)) if self.reset_at_each_iter and self.iteration else self._reset_next
        self._reset_next = set()
        try:
            batch = self._crew.gather(steps, random, sorted(fresh))
        except BaseException:  # an interrupt, too, leaves workers in the middle of a batch
            self.shutdown(2.0)
            raise
        self.frames += batch.numel()
        self.iteration += 1
        self._number(batch, fresh)
        if self.track_policy_version and (random or self.server is None):
            batch.set("policy_version", torch.full(batch.shape, self.policy_version, device=batch.device))
        if self.set_truncated:
            mark_truncated(batch, cast("EnvBase", self.env_facts))  # it asks for the end flags only
        return batch

    def _number(self, batch: TensorDictBase, fresh: Iterable[int]) -> None:
        """Write trajectory ids."""
        if self._counter is None:
            return
        self._restart(fresh)
        done = batch.get(join("next", self.env_facts.end_groups[0].done))
        flat = done.reshape(*batch.shape, -1).any(-1).reshape(self.budget.rows, batch.shape[-1])
        batch.set(("collector", "traj_ids"), self._counter.number(flat).reshape(batch.shape).to(done.device))
        if self.delivery.episodes is not None and fresh:
            self.delivery.episodes.drop(batch.get(("collector", "traj_ids")))

    def _restart(self, workers: Iterable[int]) -> None:
        each = self.env_facts.batch_size.numel()
        rows = [worker * each + row for worker in workers for row in range(each)]
        if self._counter is not None and rows:
            self._counter.restart(rows)

    # ---------------------------------------------------------------- steering
    @property
    def policy_version(self) -> int:
        """How often the policy's weights were updated."""
        return self._updates if self.server is None or self.closed else self.server.policy_version

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Give the served policy trained weights; returns when it acts with them.

        Args:
            policy_or_weights: a module, its ``state_dict`` or a TensorDict of its parameters; default: the policy that
                the collector was given.
            **kwargs: see :meth:`rl_collectors.InferenceServer.update_policy_weights_`.

        Raises:
            CollectorError: the weights do not fit, or the server is gone.
        """
        self._check_open()
        self._check_background()
        if self.server is None:
            self._updates += 1  # random actions: nothing that could be trained
        else:
            self.server.update_policy_weights_(policy_or_weights, **kwargs)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed every worker's environment, worker i with the i-th of ``spawn_seeds(seed, num_workers)``.

        The policy of a server process is seeded, too. Which requests share a call depends on time, so a policy that
        samples gives other actions in every run.

        Returns:
            The next seed of the chain; with ``static_seed`` the seed itself.
        """
        self._check_open()
        assert self._crew is not None
        *seeds, policy_seed = spawn_seeds(seed, self.num_workers + 1)
        self._crew.seed([seed] * self.num_workers if static_seed else seeds)
        if self.server is not None:
            self.server.set_seed(policy_seed)
        return seed if static_seed else seed_generator(seed)

    def reset(self, index: int | Sequence[int] | None = None) -> None:
        """Start new episodes, with new trajectory ids, from the next batch on.

        Args:
            index: workers; None: all.
        """
        self._check_open()
        self._reset_next |= set(chosen_workers(index, self.num_workers))

    def get_model(self, model_id: str = "policy") -> nn.Module:
        """The module whose weights are sent, where it was given here."""
        if model_id == "policy" and isinstance(self.policy, nn.Module):
            return self.policy
        raise KeyMissingError(f"the model {model_id!r} lives in the server only")

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """End workers and server; calling it twice is harmless.

        Args:
            timeout: seconds for workers to close their environments; default 5.
            close_env: for the sake of other collectors; workers always close what they made.
        """
        if self.closed:
            return
        self._updates = self.policy_version if self.server is None or self.server.is_alive else self._updates
        self.closed = True
        if self._background is not None:
            self._background.ask_to_stop()
        self._finalizer.detach()
        end(self._crew, self.server, 5.0 if timeout is None else timeout)
        self._stop_background(timeout)

    # ---------------------------------------------------------------- numbers, checkpoints
    def stats(self) -> dict[str, float]:
        """Frames, batches, frames per second, weight updates, workers, trajectories; the server's under "server/"."""
        self._check_background()
        elapsed = time.monotonic() - self._began
        counts: dict[str, float] = {"frames": self.frames, "iterations": self.iteration, "workers": self.num_workers}
        counts.update(frames_per_second=self.frames / elapsed if elapsed else 0.0, policy_version=self.policy_version)
        if self._counter is not None:
            counts["trajectories"] = self._counter.ids.next_id
        if self.server is not None and not self.closed:
            counts.update({f"server/{name}": value for name, value in self.server.stats().items()})
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Counters, trajectory ids, each worker's environment, and the weights that act."""
        self._check_open()
        assert self._crew is not None
        state: dict[str, Any] = {
            "frames": self.frames,
            "iteration": self.iteration,
            "reset_next": sorted(self._reset_next),
            "delivery": self.delivery.state_dict(),
            "crew": self._crew.state_dict(),
        }
        if self._counter is not None:
            state["trajectories"] = self._counter.state_dict()
        if self.server is not None:
            state["server"] = self.server.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back.

        Where an environment cannot go on with the episodes that were under way, new ones start.

        Raises:
            CollectorError: it is the state of another number of workers.
        """
        self._check_open()
        assert self._crew is not None
        fresh = self._crew.load_state_dict(state_dict["crew"])
        self.frames, self.iteration = int(state_dict["frames"]), int(state_dict["iteration"])
        self._reset_next = set(state_dict["reset_next"])
        if self._counter is not None:
            self._counter.load_state_dict(state_dict["trajectories"])
            self._restart(fresh)
        self.delivery.load_state_dict(state_dict["delivery"])
        if self.server is not None and "server" in state_dict:
            self.server.load_state_dict(state_dict["server"])

    def __repr__(self) -> str:
        return (
            f"AsyncBatchedCollector({self.num_workers} workers of {self.env_facts.name}, "
            f"frames_per_batch={self.budget.frames_per_batch}, frames={self.frames})"
        )
