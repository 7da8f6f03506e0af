"""``MultiCollector``: what collectors with worker processes have in common, synchronous or not."""

from __future__ import annotations

import time
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_collectors.budget import FrameBudget
from rl_collectors.delivery import Delivery
from rl_collectors.making import as_device
from rl_collectors.process.assembly import Piece
from rl_collectors.process.channel import PoolChannel
from rl_collectors.process.crew import Crew
from rl_collectors.process.per_worker import chosen_workers, per_worker, worker_sources
from rl_collectors.process.pool import WorkerPool
from rl_collectors.process.settings import EnvFacts, WorkerSettings
from rl_collectors.process.slots import Filled
from rl_collectors.process.worker import Order
from rl_collectors.running import RunningCollector
from rl_collectors.serial import Collector
from rl_collectors.trajectories import TrajectoryCounter, TrajectoryIds
from rl_collectors.weights.models import WeightUpdate
from rl_collectors.weights.scheme import WeightChannel, WeightSyncScheme
from rl_collectors.weights.shared_memory import SharedMemWeightSyncScheme
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.exploration import ExplorationType
from rl_core.training.seeding import seed_generator, spawn_seeds

__all__ = ["MultiCollector"]


class MultiCollector(RunningCollector):
    """Base of collectors whose environments and policies run in worker processes; the subclasses document arguments."""

    slots: ClassVar[int] = 1
    """Batches that a worker may have ready at once."""

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None,
        num_workers: int | None = None,
        frames_per_batch: int,
        total_frames: int | None = -1,
        rounding: str | None = None,
        device: Any = None,
        storing_device: torch.device | str | None = None,
        policy_device: Any = None,
        env_device: Any = None,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        collector_class: type[Collector] = Collector,
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
        trust_policy: bool = False,
        compile_policy: bool | Mapping[str, Any] | None = None,
        cudagraph_policy: bool | Mapping[str, Any] | None = None,
        track_policy_version: bool = False,
        weight_sync_schemes: Mapping[str, WeightSyncScheme] | None = None,
        update_at_each_batch: bool = False,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[TensorDictBase], Any] | None = None,
        init_fn: Callable[[], Any] | None = None,
        num_sub_threads: int = 1,
        mp_start_method: str | None = None,
        timeout: float = 60.0,
    ) -> None:
        super().__init__()
        self.closed = True  # until there is something to close
        makers = worker_sources(create_env_fn, num_workers)
        self.num_workers = len(makers)
        if policy is not None and policy_factory is not None:
            raise CollectorError("policy and policy_factory exclude each other; pass one of them")
        self.policy, self.policy_factory = policy, policy_factory
        self.delivery = Delivery(
            storing_device=as_device(storing_device), split_trajs=bool(split_trajs), trajs_per_batch=trajs_per_batch,
            traj_format=traj_format, postproc=postproc, post_collect_hook=post_collect_hook,
            replay_buffer=replay_buffer, tracked=track_traj_ids,
        )  # fmt: skip
        self.schemes: dict[str, WeightSyncScheme] = dict(weight_sync_schemes or {})
        self.schemes.setdefault("policy", self._default_scheme(timeout))
        self.set_truncated, self.track_policy_version = set_truncated, track_policy_version
        self.init_random_frames, self.reset_at_each_iter = init_random_frames or 0, reset_at_each_iter
        self.update_at_each_batch, self.pre_collect_hook = update_at_each_batch, pre_collect_hook
        self.frames, self.iteration = 0, 0
        self._began = time.monotonic()
        self._ids = TrajectoryIds() if track_traj_ids else None
        self._orders = [0] * self.num_workers
        self._reset_next = [False] * self.num_workers
        devices, policy_devices = per_worker(device, self.num_workers), per_worker(policy_device, self.num_workers)
        env_devices, kwargs = per_worker(env_device, self.num_workers), per_worker(create_env_kwargs, self.num_workers)
        factories = per_worker(policy_factory, self.num_workers)
        seeds = spawn_seeds(int(torch.randint(2**31, ())), self.num_workers)
        chunk = self._chunk(frames_per_batch)
        settings = [
            WorkerSettings(
                index=index, create_env_fn=makers[index], policy=policy, policy_factory=factories[index],
                collector_class=collector_class, seed=seeds[index], init_fn=init_fn, num_threads=num_sub_threads,
                receivers={model_id: scheme.receiver() for model_id, scheme in self.schemes.items()},
                collector_kwargs={
                    "frames_per_batch": chunk, "rounding": "up", "device": devices[index],
                    "policy_device": policy_devices[index], "env_device": env_devices[index],
                    "create_env_kwargs": kwargs[index], "max_frames_per_traj": max_frames_per_traj,
                    "exploration_type": exploration_type, "trust_policy": trust_policy,
                    "compile_policy": compile_policy, "cudagraph_policy": cudagraph_policy,
                },
            )
            for index in range(self.num_workers)
        ]  # fmt: skip
        self.pool, self._channels = self._hired(settings, mp_start_method, timeout)
        self._finalizer = weakref.finalize(self, self.pool.shutdown)
        try:
            self._adopt(self.pool.wait_until_ready(), frames_per_batch, total_frames, rounding)
        except BaseException:
            self.pool.shutdown(1.0)
            raise
        self.closed = False

    def _adopt(
        self, facts: list[EnvFacts], frames_per_batch: int, total_frames: int | None, rounding: str | None
    ) -> None:
        """Fit budget, trajectory ids and weight syncs to what the workers have made."""
        if any(each.batch_size != facts[0].batch_size for each in facts):
            raise CollectorError(
                f"the workers' environments have the batch sizes {[tuple(each.batch_size) for each in facts]}; give "
                "each worker as many as the others"
            )
        self.env_facts = facts[0]
        self._env_rows = self.env_facts.batch_size.numel()
        if self.set_truncated and any(group.truncated is None for group in self.env_facts.end_groups):
            raise CollectorError(
                f"set_truncated needs the end flag 'truncated', which {self.env_facts.name} does not have; append "
                "StepCounter(max_steps=...) or declare it in the done spec"
            )
        self.budget = FrameBudget.checked(self._rows_together(), frames_per_batch, total_frames, rounding)
        self.delivery.follow(self.env_facts.end_groups[0].done)
        for model_id, scheme in self.schemes.items():
            own = self.policy if model_id == "policy" and isinstance(self.policy, nn.Module) else None
            scheme.connect(self._channels, model_id, own)
        self._counters = [] if self._ids is None else self._make_counters()

    # ---------------------------------------------------------------- who runs the workers
    def _default_scheme(self, timeout: float) -> WeightSyncScheme:
        """How the policy's weights travel where nothing else is said."""
        return SharedMemWeightSyncScheme(timeout=timeout)

    def _hired(
        self, settings: Sequence[WorkerSettings], mp_start_method: str | None, timeout: float
    ) -> tuple[Crew, Sequence[WeightChannel]]:
        """The workers, and for each the way on which weights reach it."""
        pool = WorkerPool(settings, mp_start_method, timeout)
        return pool, [PoolChannel(pool, index) for index in range(len(settings))]

    # ---------------------------------------------------------------- what the two kinds define
    @abstractmethod
    def _chunk(self, frames_per_batch: int) -> int:
        """How many frames a worker takes between two looks whether to end its batch."""

    @abstractmethod
    def _rows_together(self) -> int:
        """Environments whose steps make one batch."""

    @abstractmethod
    def _make_counters(self) -> list[TrajectoryCounter]:
        """What numbers the workers' trajectories; all share ``_ids``."""

    @abstractmethod
    def _drain(self) -> None:
        """Take in what workers are doing, so that they wait for orders."""

    # ---------------------------------------------------------------- orders
    def _order(self, worker: int, slot: int, steps: int, random: bool) -> None:
        """Ask a worker for a batch."""
        self._orders[worker] += 1
        number = self._orders[worker]
        reset = self._reset_next[worker] or (self.reset_at_each_iter and number > 1)
        self._reset_next[worker] = False
        self.pool.send(worker, "gather", slot, Order(number, steps, random, reset), phase="collecting")

    def _piece(self, worker: int, message: tuple[Any, ...]) -> Piece:
        assert message[0] == "batch", f"worker {worker} said {message[0]!r}, not 'batch'"
        filled: Filled = message[1]
        return Piece(worker, filled, self.pool.views(worker, filled.slot), self.env_facts.batch_size)

    # ---------------------------------------------------------------- weights
    @property
    def policy_version(self) -> int:
        """How often the policy's weights were sent."""
        return self.schemes["policy"].version

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Send trained weights to the workers; returns when all of them act with these.

        A worker takes them between two policy calls, also in the middle of a batch (workers of a synchronous collector
        wait at that time, so there an update holds for whole batches).

        Args:
            policy_or_weights: a module, its ``state_dict`` or a TensorDict of its parameters; default: the policy that
                the collector was given.
            **kwargs: ``weights`` or ``policy``, other spellings of the argument; ``worker_ids``, the workers to update
                (from 0; default: all); ``model_id``, another module than the policy, for which a scheme was given;
                ``weights_dict``, model id -> weights.

        Raises:
            CollectorError: a worker does not acknowledge the new weights; they do not fit; there is no such worker.
        """
        self._check_open()
        self._check_background()
        update = WeightUpdate.of(policy_or_weights, **kwargs)
        for model_id, given in update.weights.items():
            if model_id not in self.schemes:
                raise KeyMissingError(
                    f"no weights are synced for the model {model_id!r}, only for {', '.join(map(repr, self.schemes))}; "
                    f"pass weight_sync_schemes={{{model_id!r}: SharedMemWeightSyncScheme()}}"
                )
            untrained = model_id == "policy" and not isinstance(self.policy, nn.Module) and self.policy_factory is None
            if given is None and untrained:
                continue  # a function, or random actions: nothing that could be trained
            try:
                self.schemes[model_id].send(given, update.worker_ids)
            finally:
                if self.pool.closed:
                    self.shutdown()

    # ---------------------------------------------------------------- steering
    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed every worker: its environment, and Python's, numpy's and torch's generators in it.

        Worker i gets the i-th of ``spawn_seeds(seed, num_workers)``: streams of other workers, and of runs with other
        seeds, are independent. With ``static_seed`` all workers get the seed itself.

        Returns:
            The next seed of the chain, ``seed_generator(seed)``; with ``static_seed`` the seed itself.
        """
        self._check_open()
        self._drain()
        seeds = [seed] * self.num_workers if static_seed else spawn_seeds(seed, self.num_workers)
        for worker, own in enumerate(seeds):
            self.pool.send(worker, "seed", own, phase="seeding")
        for worker in range(self.num_workers):
            self.pool.receive([worker])
        return seed if static_seed else seed_generator(seed)

    def reset(self, index: int | Sequence[int] | None = None) -> None:
        """Start new episodes, with new trajectory ids, from the next batch that is begun.

        Args:
            index: workers; None: all.
        """
        self._check_open()
        for worker in chosen_workers(index, self.num_workers):
            self._reset_next[worker] = True

    def get_model(self, model_id: str = "policy") -> nn.Module:
        """The module whose weights are sent under a model id, where it was given here."""
        if model_id == "policy" and isinstance(self.policy, nn.Module):
            return self.policy
        raise KeyMissingError(f"the model {model_id!r} lives in the workers only")

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """End the workers, which close their environments; calling it twice is harmless.

        Args:
            timeout: seconds until workers that do not end are killed; default 5.
            close_env: for the sake of other collectors; worker processes always close what they made.
        """
        self.closed = True
        if self._background is not None:
            self._background.ask_to_stop()
        told = self.pool.shutdown(5.0 if timeout is None else timeout)
        self._finalizer.detach()
        for scheme in self.schemes.values():
            scheme.shutdown()
        self._stop_background(timeout)
        for text in told:
            warnings.warn(text, stacklevel=2)

    # ---------------------------------------------------------------- numbers, checkpoints
    def stats(self) -> dict[str, float]:
        """Frames, batches, frames per second since the start, weight updates, trajectories that began, workers."""
        self._check_background()
        elapsed = time.monotonic() - self._began
        counts: dict[str, float] = {"frames": self.frames, "iterations": self.iteration, "workers": self.num_workers}
        counts.update(frames_per_second=self.frames / elapsed if elapsed else 0.0, policy_version=self.policy_version)
        if self._ids is not None:
            counts["trajectories"] = self._ids.next_id
        return counts

    def state_dict(self) -> dict[str, Any]:
        """Counters, trajectory ids, batches that are ready, and each worker's environment, policy and generators."""
        self._check_open()
        self._drain()
        state: dict[str, Any] = {
            "frames": self.frames,
            "iteration": self.iteration,
            "orders": list(self._orders),
            "reset_next": list(self._reset_next),
            "versions": {model_id: scheme.version for model_id, scheme in self.schemes.items()},
            "trajectories": [counter.state_dict() for counter in self._counters],
            "delivery": self.delivery.state_dict(),
        }
        state["workers"] = self.pool.ask(range(self.num_workers), "state", phase="saving its state")
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back.

        Where an environment cannot go on with the episodes that were under way, new ones start.

        Raises:
            CollectorError: it is the state of another number of workers.
        """
        self._check_open()
        if len(state_dict["workers"]) != self.num_workers:
            raise CollectorError(
                f"the state is of {len(state_dict['workers'])} workers, this collector has {self.num_workers}"
            )
        self._drain()
        self.frames, self.iteration = int(state_dict["frames"]), int(state_dict["iteration"])
        self._orders, self._reset_next = list(state_dict["orders"]), list(state_dict["reset_next"])
        for counter, saved in zip(self._counters, state_dict["trajectories"], strict=True):
            counter.load_state_dict(saved)
        self.delivery.load_state_dict(state_dict["delivery"])
        for model_id, version in state_dict["versions"].items():
            self.schemes[model_id].restore(int(version))
        for worker, saved in enumerate(state_dict["workers"]):
            self.pool.send(worker, "load", saved, phase="taking its state back")
        for worker in range(self.num_workers):
            self.pool.receive([worker])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_workers} workers of {self.env_facts.name}, "
            f"frames_per_batch={self.budget.frames_per_batch}, frames={self.frames})"
        )
