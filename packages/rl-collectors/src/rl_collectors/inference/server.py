"""``InferenceServer``: one policy acts for many environments or workers, in batches."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from rl_collectors.inference.bare_policies import bound_to
from rl_collectors.inference.client import Link, PolicyClient
from rl_collectors.inference.host import HostSettings, ThreadHost
from rl_collectors.inference.process_server import ProcessHost
from rl_collectors.inference.process_serving import ProcessSettings
from rl_collectors.inference.queueing import RequestQueue
from rl_collectors.inference.remote_link import RemoteLink
from rl_collectors.inference.thread_transport import LocalLink
from rl_collectors.making import as_device
from rl_collectors.weights.models import WeightUpdate
from rl_collectors.weights.named import named_weights
from rl_collectors.weights.scheme import WeightSyncScheme
from rl_collectors.weights.shared_memory import SharedMemWeightSyncScheme
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.exploration import ExplorationType
from rl_core.keys import Key

__all__ = ["InferenceServer"]

_BACKENDS = ("thread", "process")


class InferenceServer:
    """Answers many clients with one call of a policy for all of them.

    A batch is made as soon as ``min_batch_size`` rows wait; it takes what waits, up to ``max_batch_size`` rows. When
    the oldest request has waited for ``timeout`` seconds, the batch goes with fewer rows. While the policy acts, the
    next requests gather, so even ``min_batch_size=1`` makes batches where there is much to do. A request is never
    split, and requests of different entries, dtypes or shapes come into different batches.

    Args:
        policy: a TensorDict module, or a function of a TensorDict that treats rows each for itself. Of a module a copy
            acts; :meth:`update_policy_weights_` refreshes it.
        policy_factory: makes the policy instead, in the process where it acts.
        create_env_fn: makes the environment whose entries a policy of bare tensors reads and writes; only needed for
            such a policy, and closed at once.
        max_batch_size: rows of a batch at most; one request of more rows goes alone.
        min_batch_size: rows that are worth a batch.
        timeout: seconds that a request waits for others.
        device: where the policy acts; None: where it is. Answers return to where their requests were.
        exploration_type: in force while the policy acts.
        backend: "thread" serves in a thread of this process, "process" in a process of its own.
        policy_version_key: where clients write the version of the weights that acted, int64 ``[*B]``; None: nowhere.
        weight_sync: of a "process", how weights travel; default :class:`~rl_collectors.SharedMemWeightSyncScheme`.
        num_threads: of a "process", torch's threads there; None: as torch likes.
        mp_start_method: of a "process": "forkserver" (default), "spawn" or "fork"; see
            :class:`~rl_collectors.MultiSyncCollector`.
        answer_timeout: seconds that a client waits for an answer before it raises.

    Raises:
        CollectorError: no policy, or two; numbers that make no sense; the policy cannot be sent to, or made in, a
            process.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from rl_core.testing.collector_kit import constant_policy
        >>> with InferenceServer(constant_policy(0.5)) as server:
        ...     future = server.client().submit(TensorDict({"observation": torch.zeros(1)}, []))
        ...     future.result()["action"].item(), server.stats()["rows"]
        (0.5, 1)
    """

    def __init__(
        self,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | None = None,
        create_env_fn: Any = None,
        max_batch_size: int = 64,
        min_batch_size: int = 1,
        timeout: float = 0.01,
        device: torch.device | str | None = None,
        exploration_type: ExplorationType | None = ExplorationType.RANDOM,
        backend: str = "thread",
        policy_version_key: Key | None = None,
        weight_sync: WeightSyncScheme | None = None,
        num_threads: int | None = None,
        mp_start_method: str | None = None,
        answer_timeout: float = 60.0,
    ) -> None:
        if backend not in _BACKENDS:
            raise CollectorError(f"backend is {backend!r}; it is one of {', '.join(map(repr, _BACKENDS))}")
        if backend == "thread" and weight_sync is not None:
            raise CollectorError("weight_sync is about backend='process'; a server in a thread copies weights itself")
        if (policy is None) == (policy_factory is None):
            raise CollectorError("pass a policy or a policy_factory, and not both: a server has one policy")
        RequestQueue(max_batch_size, min_batch_size, timeout)  # raises about the numbers here, not in a process
        self.policy, self.backend, self.policy_version_key = policy, backend, policy_version_key
        self.answer_timeout = answer_timeout
        self._settings = HostSettings(
            policy, policy_factory, as_device(device), exploration_type, max_batch_size, min_batch_size, timeout,
            None if create_env_fn is None else partial(bound_to, create_env_fn),
        )  # fmt: skip
        self._scheme = weight_sync
        self._process_options = (num_threads, mp_start_method)
        self._host: ThreadHost | ProcessHost | None = None
        self._finalizer: Any = None
        self._lock = threading.Lock()
        self.closed = False

    # ---------------------------------------------------------------- life
    def start(self) -> InferenceServer:
        """Begin to serve; returns the server. ``with server:`` does it, too."""
        if self.closed:
            raise CollectorError("this inference server is shut down; construct a new one")
        if self._host is None:
            self._host = self._thread_host() if self.backend == "thread" else self._process_host()
            self._finalizer = weakref.finalize(self, self._host.stop)
        return self

    def _thread_host(self) -> ThreadHost:
        host = ThreadHost(self._settings)
        host.loop.start()
        return host

    def _process_host(self) -> ProcessHost:
        num_threads, start_method = self._process_options
        scheme = SharedMemWeightSyncScheme(timeout=self.answer_timeout) if self._scheme is None else self._scheme
        seed = int(torch.randint(2**31, ()))
        settings = ProcessSettings(self._settings, scheme.receiver(), seed, num_threads)
        host = ProcessHost(settings, start_method, self.answer_timeout)
        try:
            scheme.connect([host], "policy", self.policy if isinstance(self.policy, nn.Module) else None)
        except BaseException:
            host.stop(1.0)
            raise
        self._scheme = scheme
        return host

    def __enter__(self) -> InferenceServer:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    @property
    def is_alive(self) -> bool:
        """Whether requests are answered."""
        return self._host is not None and self._host.alive

    def shutdown(self, timeout: float | None = None) -> None:
        """End after the call under way; clients that wait get an error. Calling it twice is harmless.

        Args:
            timeout: seconds for that call; default 5. Then a process is killed, a thread left behind.
        """
        self.closed = True
        host, self._host = self._host, None
        if host is None:
            return
        self._finalizer.detach()
        told = host.stop(5.0 if timeout is None else timeout)
        if self._scheme is not None:
            self._scheme.shutdown()
        for text in told:
            warnings.warn(text, stacklevel=2)

    def _started(self) -> ThreadHost | ProcessHost:
        if self._host is None:
            raise CollectorError(
                "this inference server is shut down"
                if self.closed
                else "this inference server is not started: call start(), or use it as a context, with server: ..."
            )
        return self._host

    # ---------------------------------------------------------------- clients
    def client(self, *, remote: bool | None = None, timeout: float | None = None) -> PolicyClient:
        """A policy that asks this server, for any number of threads.

        Args:
            remote: whether it can be sent to other processes of the machine; default: as the backend is a process.
            timeout: seconds that an answer may take; default: ``answer_timeout``.
        """
        host = self._started()
        link: Link
        if isinstance(host, ThreadHost) and not remote:
            link = LocalLink(host.queue, self)
        else:
            link = RemoteLink(host.address, self.answer_timeout)
        limit = self.answer_timeout if timeout is None else timeout
        return PolicyClient(link, host.facts, self.policy_version_key, limit)

    # ---------------------------------------------------------------- weights
    @property
    def policy_version(self) -> int:
        """How often the weights were updated."""
        host = self._started()
        if isinstance(host, ThreadHost):
            return host.version
        assert self._scheme is not None
        return self._scheme.version

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Give the policy trained weights, between two calls; returns when it acts with them.

        Args:
            policy_or_weights: a module, its ``state_dict`` or a TensorDict of its parameters; default: the policy that
                the server was given.
            **kwargs: ``weights``, ``policy``, ``weights_dict``, ``model_id``, ``worker_ids``, as collectors take them;
                a server has the model "policy" and the worker 0.

        Raises:
            CollectorError: the weights do not fit, and the server goes on with those it has; or it is gone.
        """
        update = WeightUpdate.of(policy_or_weights, **kwargs)
        if set(update.weights) != {"policy"}:
            raise KeyMissingError(f"an inference server has the model 'policy' only, not {sorted(update.weights)}")
        if update.worker_ids not in (None, [0]):
            raise CollectorError(f"worker_ids={update.worker_ids}: an inference server is worker 0")
        host, given = self._started(), update.weights["policy"]
        source = self.policy if given is None else given
        with self._lock:
            if isinstance(host, ProcessHost):
                assert self._scheme is not None
                if given is not None or source is None or isinstance(source, nn.Module):
                    self._scheme.send(given)
                return
            if source is None:
                raise CollectorError("there are no weights: the policy was made by a factory. Say whose to take")
            bare = given is None and not isinstance(source, nn.Module)  # a function: nothing that could be trained
            host.update(host.version + 1, None if bare else named_weights(source))

    # ---------------------------------------------------------------- numbers, checkpoints
    def stats(self) -> dict[str, float]:
        """What was served since the start, or since :meth:`reset_stats`.

        Returns:
            ``requests``, ``rows``, ``batches``, ``failures`` (batches in which the policy raised);
            ``batch_size_mean``, ``batch_size_p50``, ``_p95``, ``_p99`` (rows); ``waiting_ms_p50``, ... (from the
            request to the call), ``computing_ms_p50``, ... (the call, with joining and splitting); ``policy_share``
            (of the time, in calls); ``policy_version``.
        """
        return {**self._started().stats(), "policy_version": self.policy_version}

    def reset_stats(self) -> None:
        """Count from zero."""
        self._started().reset_stats()

    def set_seed(self, seed: int) -> None:
        """Seed the random numbers of a server process; one in a thread draws from this process's generators."""
        host = self._started()
        if isinstance(host, ProcessHost):
            host.seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """The weights that act, and their version."""
        return self._started().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        self._started().load_state_dict(state_dict)
        if self._scheme is not None:
            self._scheme.restore(int(state_dict["version"]))

    def __repr__(self) -> str:
        state = "shut down" if self.closed else "serving" if self.is_alive else "not started"
        return f"InferenceServer({type(self.policy).__name__}, backend={self.backend!r}, {state})"
