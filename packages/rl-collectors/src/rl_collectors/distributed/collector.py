"""``DistributedCollector``: the collectors with worker processes, where the processes may run on other machines."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensordict import TensorDictBase
from torch import nn

from rl_collectors.distributed.channel import NodeChannel
from rl_collectors.distributed.launchers import Launcher, LocalLauncher, ManualLauncher
from rl_collectors.distributed.pool import NodePool
from rl_collectors.distributed.rendezvous import LOOPBACK, reachable_name
from rl_collectors.process.assembly import Piece
from rl_collectors.process.crew import Crew
from rl_collectors.process.multi import MultiCollector
from rl_collectors.process.multi_async import MultiAsyncCollector
from rl_collectors.process.multi_sync import MultiSyncCollector
from rl_collectors.process.per_worker import worker_sources
from rl_collectors.process.settings import WorkerSettings
from rl_collectors.weights.distributed import DistributedWeightSyncScheme
from rl_collectors.weights.models import WeightUpdate
from rl_collectors.weights.scheme import WeightChannel, WeightSyncScheme
from rl_collectors.weights.shared_memory import SharedMemWeightSyncScheme
from rl_core.errors import CollectorError

__all__ = ["DistributedCollector"]

_LAUNCHERS = ("local", "submitit", "manual")


class DistributedCollector(MultiCollector):
    """A :class:`MultiSyncCollector` (`sync`) or a :class:`MultiAsyncCollector` whose workers may be on other machines.

    Batches, frames, versions of weights and errors are those of these two. Tensors travel over gloo, into memory that
    is set aside once; torch's default process group is neither made nor used. The workers unpickle what the learner
    sends and the other way round: for machines and networks that you trust.

    Args:
        create_env_fn: makes the environments: a function, an ``EnvRef``, a name such as ``"gym:CartPole-v1"``, or a
            list of these, one for each collector or for each worker. Lambdas and local functions need cloudpickle.
        policy: what acts; every worker has a copy, which :meth:`update_policy_weights_` refreshes. None: random
            actions. It is sent from the CPU; `policy_device` says where it acts.
        num_collectors: nodes, jobs or, with "local", groups of processes.
        num_workers_per_collector: processes of each; every one is a worker of its own, of rank 1, 2, ...
        sync: whether workers wait for each other; without it batches ``[*B, T]`` of one worker each come as finished.
        backend: "gloo"; batches are in CPU memory.
        launcher: "local" starts processes on this machine; "submitit" submits a job for each collector; "manual"
            leaves it to others to start ``python -m rl_collectors.distributed --address host:port --rank k``.
        slurm_kwargs: for "submitit": ``folder``, ``cluster`` ("slurm", "local"), and what
            ``submitit.AutoExecutor.update_parameters`` takes (``slurm_partition``, ``timeout_min``, ...).
        tcp_port: where workers connect; default a free one ("manual" needs it).
        address: of this machine, as workers reach it; default the loopback for "local", else a guess.
        start_timeout: seconds for all workers to connect; default 120 for "local", else 3600.
        silence: seconds without a sign of life (there is one every half second) after which a worker counts as lost.
        update_after_each_batch: send the policy's weights after each batch, before the next one.
        max_weight_update_interval: send them to a worker after so many of its batches without an update; -1: never.
        **kwargs: those of :class:`MultiSyncCollector`, except `num_workers` and `mp_start_method`; `cat_results` and
            `preemptive_threshold` with `sync` only. `frames_per_batch` is the total over workers with `sync`, and of
            one worker without. Weights travel by :class:`DistributedWeightSyncScheme`.

    Raises:
        CollectorError: as for :class:`MultiSyncCollector`; a worker is named with its rank, host and process.
    """

    def __new__(cls, *args: Any, sync: bool = True, **kwargs: Any) -> DistributedCollector:
        """One of the two kinds; each is a ``DistributedCollector``."""
        if cls is DistributedCollector:
            return object.__new__(SyncDistributedCollector if sync else AsyncDistributedCollector)
        return object.__new__(cls)

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        num_collectors: int | None = None,
        num_workers_per_collector: int = 1,
        sync: bool = True,
        backend: str = "gloo",
        launcher: str = "local",
        slurm_kwargs: Mapping[str, Any] | None = None,
        tcp_port: int | None = None,
        address: str | None = None,
        start_timeout: float | None = None,
        silence: float = 10.0,
        update_after_each_batch: bool = False,
        max_weight_update_interval: int = -1,
        **kwargs: Any,
    ) -> None:
        self.closed = True  # until there is something to close
        if backend != "gloo":
            raise CollectorError(f"backend is {backend!r}; batches lie in CPU memory, which 'gloo' carries")
        if kwargs.get("mp_start_method") is not None:
            raise CollectorError("mp_start_method is for worker processes of MultiSyncCollector; leave it out")
        makers = _makers(create_env_fn, num_collectors, num_workers_per_collector)
        self._start_timeout = (120.0 if launcher == "local" else 3600.0) if start_timeout is None else start_timeout
        self._launcher = _launcher(launcher, slurm_kwargs, num_workers_per_collector, tcp_port, self._start_timeout)
        self._address = address or (LOOPBACK if launcher == "local" else reachable_name())
        self._tcp_port, self._silence = tcp_port, silence
        self.max_weight_update_interval = max_weight_update_interval
        self._since_update = [0] * len(makers)
        if update_after_each_batch:
            kwargs["update_at_each_batch"] = True
        _check_schemes(kwargs.get("weight_sync_schemes"))
        super().__init__(makers, policy, **kwargs)

    __signature__ = inspect.Signature(list(inspect.signature(__init__).parameters.values())[1:])  # not that of __new__

    def _default_scheme(self, timeout: float) -> WeightSyncScheme:
        return DistributedWeightSyncScheme(timeout=timeout)

    def _hired(
        self, settings: Sequence[WorkerSettings], mp_start_method: str | None, timeout: float
    ) -> tuple[Crew, Sequence[WeightChannel]]:
        policy = _from_cpu(self.policy)
        pool = NodePool(
            [replace(each, policy=policy) for each in settings], self._launcher, self._address, self._tcp_port,
            timeout=timeout, start_timeout=self._start_timeout, silence=self._silence,
        )  # fmt: skip
        return pool, [NodeChannel(pool, index) for index in range(len(settings))]

    # ---------------------------------------------------------------- weights that are due
    def _piece(self, worker: int, message: tuple[Any, ...]) -> Piece:
        self._since_update[worker] += 1
        return super()._piece(worker, message)

    def _update_what_is_due(self) -> None:
        limit = self.max_weight_update_interval
        due = [worker for worker, count in enumerate(self._since_update) if 0 < limit <= count]
        if due:
            self.update_policy_weights_(worker_ids=due)

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        super().update_policy_weights_(policy_or_weights, **kwargs)
        update = WeightUpdate.of(policy_or_weights, **kwargs)
        if "policy" in update.weights:
            for worker in range(self.num_workers) if update.worker_ids is None else update.worker_ids:
                self._since_update[worker] = 0

    update_policy_weights_.__doc__ = MultiCollector.update_policy_weights_.__doc__


class SyncDistributedCollector(MultiSyncCollector, DistributedCollector):
    """``DistributedCollector(sync=True)``."""

    def _batch(self, steps: int) -> TensorDictBase:
        self._check_open()
        self._update_what_is_due()
        return super()._batch(steps)


class AsyncDistributedCollector(MultiAsyncCollector, DistributedCollector):
    """``DistributedCollector(sync=False)``."""

    def _collect(self) -> TensorDictBase | None:
        self._check_open()
        self._update_what_is_due()
        return super()._collect()


def _makers(create_env_fn: Any, collectors: int | None, workers_each: int) -> list[Any]:
    """What each worker makes its environment from."""
    if workers_each < 1:
        raise CollectorError(f"num_workers_per_collector is {workers_each}; a collector has at least one worker")
    if not isinstance(create_env_fn, Sequence) or isinstance(create_env_fn, str):
        if collectors is None:
            raise CollectorError("create_env_fn is one function; say for how many collectors: num_collectors=...")
        create_env_fn = [create_env_fn] * collectors
    given = len(create_env_fn)
    if collectors is None:
        collectors = given
    if given not in (collectors, collectors * workers_each) or not given:
        raise CollectorError(
            f"create_env_fn has {given} entries for {collectors} collectors of {workers_each} workers; give one, one "
            "for each collector, or one for each worker"
        )
    if given == collectors:
        create_env_fn = [maker for maker in create_env_fn for _ in range(workers_each)]
    return worker_sources(create_env_fn, None)


def _check_schemes(given: Mapping[str, WeightSyncScheme] | None) -> None:
    for model_id, scheme in (given or {}).items():
        if isinstance(scheme, SharedMemWeightSyncScheme):
            raise CollectorError(
                f"the weights of {model_id!r} cannot travel in shared memory between machines; pass "
                f"weight_sync_schemes={{{model_id!r}: DistributedWeightSyncScheme()}}"
            )


def _from_cpu(policy: Any) -> Any:
    """A policy that a machine without this one's devices can unpickle."""
    if not isinstance(policy, nn.Module):
        return policy
    tensors = [*policy.parameters(), *policy.buffers()]
    return policy if all(tensor.device.type == "cpu" for tensor in tensors) else copy.deepcopy(policy).to("cpu")


def _launcher(
    kind: str, slurm_kwargs: Mapping[str, Any] | None, workers_each: int, port: int | None, wait: float
) -> Launcher:
    if kind not in _LAUNCHERS:
        raise CollectorError(f"launcher is {kind!r}; it is one of {', '.join(map(repr, _LAUNCHERS))}")
    if slurm_kwargs is not None and kind != "submitit":
        raise CollectorError(f"slurm_kwargs are for launcher='submitit', not {kind!r}")
    if kind == "local":
        return LocalLauncher()
    if kind == "manual":
        if port is None:
            raise CollectorError("workers that others start must know where to connect; pass tcp_port=..., and address")
        return ManualLauncher()
    try:
        from rl_collectors.distributed.slurm import SubmititLauncher
    except ModuleNotFoundError as error:
        if error.name != "submitit":
            raise
        raise CollectorError("launcher='submitit' needs submitit: pip install 'rl-collectors[slurm]'") from error
    return SubmititLauncher(workers_each, slurm_kwargs or {}, wait)
