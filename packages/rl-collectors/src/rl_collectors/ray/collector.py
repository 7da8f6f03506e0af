"""``RayCollector``: environments and policies in Ray actors, with the iteration of the collectors with processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_collectors.budget import FrameBudget
from rl_collectors.making import as_device
from rl_collectors.process.per_worker import worker_sources
from rl_collectors.ray.cluster import start_ray
from rl_collectors.ray.engines import AsyncOnRay, SyncOnRay
from rl_collectors.ray.handover import HandoverSettings, RemoteBuffer
from rl_collectors.ray.hire import Hire
from rl_collectors.ray.library import ray
from rl_collectors.weights.scheme import WeightSyncScheme
from rl_collectors.weights.shared_memory import SharedMemWeightSyncScheme
from rl_core.collectors.contract import BaseCollector
from rl_core.errors import CollectorError

__all__ = ["RayCollector"]


class RayCollector(BaseCollector):
    """Yields batches of environments that are stepped in Ray actors, on this machine or on many.

    With ``sync=True`` as :class:`~rl_collectors.MultiSyncCollector` does: ``[N, *B, T]``, the same number of steps of
    each of N actors, which wait between two batches. With ``sync=False`` as :class:`~rl_collectors.MultiAsyncCollector`
    does: ``[*B, T]`` of one actor each, in the order in which they are finished. Batches travel through Ray's object
    store, weights lie in it once for all actors.

    Args:
        create_env_fn: makes environments (a function, an ``EnvRef``, or a name such as ``"gym:CartPole-v1"``); one for
            all actors, or a list with one for each.
        policy: what acts; each actor has a copy on its CPU, unless ``policy_device`` says otherwise. None: random
            actions.
        policy_factory: makes the policy in each actor instead; one, or one for each.
        frames_per_batch: environment steps in a batch: over all actors if `sync`, else of one.
        total_frames: environment steps in all; the last batch holds what remains. -1: no end.
        num_collectors: how many actors; default: as many as `create_env_fn` has entries.
        num_workers_per_collector: worker processes in each actor; with M > 1 its batches are ``[M, *B, T]``, and it
            takes new weights between two of them.
        sync: wait for all actors with each batch.
        ray_init_config: arguments of ``ray.init``, e.g. ``{"address": "auto"}`` for a cluster that runs. By default Ray
            is started on this machine. It is used if it runs here already, and shut down with the collector only if
            that has started it.
        remote_configs: resources of the actors, e.g. ``{"num_cpus": 1, "num_gpus": 0.25}``, once or for each. Ray's
            default asks for one CPU to place an actor and none while it runs.
        update_after_each_batch: send the policy's weights before the next batch: to all actors if `sync`, else to the
            one whose batch was read.
        max_weight_update_interval: send an actor the policy's weights when so many batches were read since it got some;
            -1: never without being asked.
        weight_sync_schemes: model id -> how its weights travel; default ``{"policy": RayWeightSyncScheme()}``.
        replay_buffer: gets the batches. One that lives here is extended here, with each batch. Into one that lives in
            an actor (``RayReplayBuffer``) the actors write themselves, in the order in which they finish: nothing but
            counts comes here, `postproc` runs there, and trajectory ids have gaps.
        restart: start an actor anew that has died, with the current weights and new episodes, and go on: True, or how
            often in all. What it had collected of its batch is lost, and collected again (`frames_lost`,
            `restarts`, a warning). One that dies three times in a row without a batch ends the run. Exceptions of an
            environment or a policy are raised here in any case.
        postproc: a function of each batch.
        split_trajs: yield one padded row per trajectory.
        trajs_per_batch: yield whole trajectories, so many at a time.
        traj_format: of these, "padded" or "cat".
        track_traj_ids: write ``("collector", "traj_ids")``, unique over all actors.
        set_truncated: mark each batch's last step as truncated where its episode goes on.
        storing_device: where batches live.
        post_collect_hook: called with each batch.
        timeout: seconds without any progress after which an actor counts as hanging.
        **kwargs: further arguments of :class:`~rl_collectors.MultiSyncCollector`, such as `device`, `policy_device`,
            `create_env_kwargs`, `init_random_frames`, `max_frames_per_traj`, `reset_at_each_iter`, `exploration_type`,
            `track_policy_version`; `cat_results` and `preemptive_threshold` if `sync`.

    Raises:
        CollectorError: budgets that do not divide; an actor that fails, dies or hangs, with its index, its place, what
            it was doing and its traceback. All actors are ended then.

    Example:
        >>> collector = RayCollector("gym:CartPole-v1", policy, num_collectors=8, frames_per_batch=2000,
        ...                          total_frames=100_000)  # doctest: +SKIP
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None,
        frames_per_batch: int,
        total_frames: int | None = -1,
        num_collectors: int | None = None,
        num_workers_per_collector: int = 1,
        sync: bool = True,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        update_after_each_batch: bool = False,
        max_weight_update_interval: int = -1,
        weight_sync_schemes: Mapping[str, WeightSyncScheme] | None = None,
        replay_buffer: Any = None,
        restart: bool | int = False,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        split_trajs: bool | None = None,
        trajs_per_batch: int | None = None,
        traj_format: str = "padded",
        track_traj_ids: bool = True,
        track_policy_version: bool = False,
        set_truncated: bool = False,
        storing_device: torch.device | str | None = None,
        post_collect_hook: Callable[[TensorDictBase], Any] | None = None,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        if isinstance(create_env_fn, str) or not isinstance(create_env_fn, Sequence):
            num_collectors = 1 if num_collectors is None else num_collectors
        sources = worker_sources(create_env_fn, num_collectors)
        _check(num_workers_per_collector, restart, weight_sync_schemes, kwargs)
        delivery: dict[str, Any] = {
            "storing_device": as_device(storing_device), "split_trajs": bool(split_trajs),
            "trajs_per_batch": trajs_per_batch, "traj_format": traj_format, "postproc": postproc,
        }  # fmt: skip
        notes = {"track_traj_ids": track_traj_ids, "track_policy_version": track_policy_version}
        handover = None
        if isinstance(replay_buffer, RemoteBuffer):
            if post_collect_hook is not None:
                raise CollectorError(
                    "post_collect_hook is called with batches, which go from the actors to the replay buffer without "
                    "passing here; look at them there, or use postproc, which runs in the actors"
                )
            handover = HandoverSettings(replay_buffer, delivery, len(sources), set_truncated=set_truncated, **notes)
            delivery, notes = {}, {"track_traj_ids": False, "track_policy_version": False}
            set_truncated = False
        hire = Hire(remote_configs, num_workers_per_collector, restart, handover, start_ray(ray_init_config))
        try:
            self._engine: SyncOnRay | AsyncOnRay = (SyncOnRay if sync else AsyncOnRay)(
                sources, policy, policy_factory=policy_factory, frames_per_batch=frames_per_batch,
                total_frames=total_frames, weight_sync_schemes=weight_sync_schemes, set_truncated=set_truncated,
                replay_buffer=replay_buffer, post_collect_hook=post_collect_hook, timeout=timeout, hire=hire,
                update_after=update_after_each_batch, max_update_interval=max_weight_update_interval,
                **notes, **delivery, **kwargs,
            )  # fmt: skip
        except BaseException:
            if hire.started_ray and ray.is_initialized():
                ray.shutdown()
            raise

    # ---------------------------------------------------------------- collecting
    def __iter__(self) -> Iterator[Any]:
        """Batches until ``total_frames``; then, or with an error, the collector shuts down.

        A loop that is left early can be taken up again by another one. With a replay buffer, None for each batch.
        """
        return iter(self._engine)

    def next(self) -> TensorDictBase | None:
        """One more batch, or None when ``total_frames`` is reached (and always with a replay buffer)."""
        return self._engine.next()

    def rollout(self) -> TensorDictBase:
        """One more batch of full length, whatever the budget says; it is not handed to the buffer."""
        return self._engine.rollout()

    def start(self) -> None:
        """Collect into the replay buffer in a thread of its own; see :meth:`MultiSyncCollector.start`."""
        self._engine.start()

    @property
    def is_running(self) -> bool:
        """Whether batches are being collected in the background."""
        return self._engine.is_running

    def pause(self) -> AbstractContextManager[None]:
        """A block within which nothing is collected in the background."""
        return self._engine.pause()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """End collecting in the background after the batch under way, and shut down."""
        self._engine.async_shutdown(timeout, close_env)

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """End the actors, which close their environments, and Ray where it was started here; twice is harmless.

        Args:
            timeout: seconds until actors that do not end are killed; default 5.
            close_env: for the sake of other collectors; actors always close what they made.
        """
        self._engine.shutdown(timeout, close_env)

    # ---------------------------------------------------------------- steering
    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Send trained weights to the actors; returns when all of them act with these.

        An actor takes them between two policy calls, also in the middle of a batch (actors of a synchronous collector
        wait at that time, so there an update holds for whole batches).

        Args:
            policy_or_weights: a module, its ``state_dict`` or a TensorDict of its parameters; default: the policy that
                the collector was given.
            **kwargs: see :meth:`MultiSyncCollector.update_policy_weights_`.

        Raises:
            CollectorError: an actor does not acknowledge the new weights; they do not fit; there is no such actor.
        """
        self._engine.update_policy_weights_(policy_or_weights, **kwargs)

    @property
    def policy_version(self) -> int:
        """How often the policy's weights were sent."""
        return self._engine.policy_version

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed every actor with a stream of its own; returns the next seed of the chain."""
        return self._engine.set_seed(seed, static_seed)

    def reset(self, index: int | Sequence[int] | None = None) -> None:
        """Start new episodes in all actors, or in some, from the next batch that is begun."""
        self._engine.reset(index)

    def get_model(self, model_id: str = "policy") -> nn.Module:
        """The module whose weights are sent under a model id, where it was given here."""
        return self._engine.get_model(model_id)

    # ---------------------------------------------------------------- numbers, checkpoints
    @property
    def budget(self) -> FrameBudget:
        """Frames of a batch and of the run."""
        return self._engine.budget

    @property
    def frames(self) -> int:
        """Environment steps so far."""
        return self._engine.frames

    @property
    def iteration(self) -> int:
        """Batches so far."""
        return self._engine.iteration

    @property
    def closed(self) -> bool:
        """Whether it is shut down."""
        return self._engine.closed

    @property
    def num_collectors(self) -> int:
        """How many actors there are."""
        return self._engine.num_workers

    @property
    def actors(self) -> list[Any]:
        """Ray's handles of the actors."""
        return [member.handle for member in self._engine.actors.members]

    @property
    def restarts(self) -> int:
        """How many actors were started anew."""
        return self._engine.actors.restarts

    @property
    def frames_lost(self) -> int:
        """Frames of batches that actors had begun when they died, at most; they were collected again."""
        return self._engine.actors.frames_lost

    @property
    def policy(self) -> Any:
        """The policy that was given."""
        return self._engine.policy

    @property
    def replay_buffer(self) -> Any:
        """What batches are handed to in place of the reader."""
        return self._engine.replay_buffer

    def stats(self) -> dict[str, float]:
        """Frames, batches, frames per second since the start, weight updates, actors, restarts, frames lost."""
        return self._engine.stats()

    def state_dict(self) -> dict[str, Any]:
        """Counters, trajectory ids, batches that are ready, and each actor's environment, policy and generators."""
        return self._engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back; where an environment cannot go on, new episodes start."""
        self._engine.load_state_dict(state_dict)

    def __len__(self) -> int:
        """Batches of a run."""
        return len(self._engine)

    def __repr__(self) -> str:
        kind = "sync" if isinstance(self._engine, SyncOnRay) else "async"
        return (
            f"RayCollector({self.num_collectors} actors of {self._engine.env_facts.name}, {kind}, "
            f"frames_per_batch={self.budget.frames_per_batch}, frames={self.frames})"
        )


def _check(
    workers: int, restart: Any, schemes: Mapping[str, WeightSyncScheme] | None, kwargs: Mapping[str, Any]
) -> None:
    """Raise for arguments that cannot be."""
    if workers < 1:
        raise CollectorError(f"num_workers_per_collector is {workers}; an actor has at least one worker")
    if restart < 0:
        raise CollectorError(f"restart is {restart}; it is True, False or how often actors are started anew")
    if workers > 1 and kwargs.get("preemptive_threshold") is not None:
        raise CollectorError(
            "preemptive_threshold cuts the batch of an actor that steps itself; leave it out, or leave "
            f"num_workers_per_collector={workers} out"
        )
    for model_id, scheme in (schemes or {}).items():
        if isinstance(scheme, SharedMemWeightSyncScheme):
            raise CollectorError(
                f"the weights of {model_id!r} cannot be sent by SharedMemWeightSyncScheme: Ray actors share no memory "
                "with this process. Leave weight_sync_schemes out, or pass RayWeightSyncScheme()"
            )
    for name, instead in (("mp_start_method", "Ray starts"), ("num_workers", "num_collectors counts")):
        if name in kwargs:
            raise CollectorError(
                f"{name} is an argument of collectors with worker processes; {instead} the actors here"
            )
