"""RayReplayBuffer: a buffer in a Ray actor, used like one that is here."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.buffer import ReplayBuffer
from rl_buffers.ray.host import BufferHost
from rl_buffers.ray.library import ray
from rl_buffers.ray.wire import packed, unpacked
from rl_buffers.stats import BufferStats
from rl_core.errors import ReplayBufferError

__all__ = ["RayReplayBuffer"]

_NAMESPACE = "rl-buffers"
_THREADS = 16


class RayReplayBuffer:
    """A replay buffer that lives in a Ray actor; every call goes there and comes back, rows and batches are copies.

    The object can be pickled and given to Ray tasks and actors, and to other processes: all copies are clients of the
    same buffer. It lives as long as the object that made it, or until :meth:`close`.

    Paths of :meth:`dumps` and :meth:`loads` are those of the machine that the actor runs on.

    Args:
        *args: for `replay_buffer_cls`.
        replay_buffer_cls: makes the buffer in the actor.
        ray_init_config: arguments of ``ray.init``, e.g. ``{"address": "auto"}`` for a cluster that runs; without it
            Ray is started on this machine, and used if it runs already.
        remote_config: options of the actor, e.g. ``{"num_cpus": 1, "resources": {...}}``.
        timeout: seconds to wait for an answer; default: as long as it takes. A dead actor is noticed in any case.
        **kwargs: for `replay_buffer_cls`. `storage`, `sampler`, `writer` and `rate_limiter` may be functions
            without arguments that make them, which then happens in the actor.

    Raises:
        ReplayBufferError: the actor cannot be started, or has died.

    Example:
        >>> buffer = RayReplayBuffer(storage=lambda: LazyTensorStorage(1000), batch_size=32)  # doctest: +SKIP
        >>> buffer.extend(data), len(buffer), buffer.sample()  # doctest: +SKIP
    """

    def __init__(
        self,
        *args: Any,
        replay_buffer_cls: Callable[..., Any] = ReplayBuffer,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_config: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        self._started_ray = _start_ray(ray_init_config)
        self.name = f"replay-buffer-{uuid.uuid4().hex[:12]}"
        self.timeout = timeout
        options = {"max_concurrency": _THREADS, **(remote_config or {}), "name": self.name, "namespace": _NAMESPACE}
        self._actor: Any = ray.remote(BufferHost).options(**options).remote(replay_buffer_cls, (args, kwargs))
        self._owner = True
        try:
            self._ask("ready")
        except BaseException:
            self.close()
            raise
        self.batch_size: int | None = self._ask("read", "batch_size")

    @classmethod
    def _connect(cls, name: str, address: str, timeout: float | None, batch_size: int | None) -> RayReplayBuffer:
        """A client of a buffer that is there; called where one is unpickled."""
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        self = cls.__new__(cls)
        self.name, self.timeout, self.batch_size = name, timeout, batch_size
        self._started_ray = self._owner = False
        try:
            self._actor = ray.get_actor(name, namespace=_NAMESPACE)
        except ValueError as error:
            raise ReplayBufferError(
                f"the actor {name!r} that holds the replay buffer is not there: it was closed, or it has died"
            ) from error
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        address = ray.get_runtime_context().gcs_address
        return type(self)._connect, (self.name, address, self.timeout, self.batch_size)

    def client(self) -> RayReplayBuffer:
        """Another client of the same buffer, which does not end it."""
        return self._connect(self.name, ray.get_runtime_context().gcs_address, self.timeout, self.batch_size)

    def clients(self, n: int) -> list[RayReplayBuffer]:
        """`n` clients of the same buffer."""
        return [self.client() for _ in range(n)]

    # ------------------------------------------------------------------------------------------------ calls
    def _ask(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            raise ReplayBufferError(f"the replay buffer {self.name!r} was closed")
        try:
            return unpacked(ray.get(getattr(self._actor, method).remote(*arguments), timeout=self.timeout))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, Exception) else error) from error
        except ray.exceptions.RayActorError as error:
            raise ReplayBufferError(
                f"the actor {self.name!r} that holds the replay buffer has died, its rows are lost unless they were "
                f"saved with dumps(): {_first_line(error)}"
            ) from error
        except ray.exceptions.GetTimeoutError as error:
            raise ReplayBufferError(
                f"the actor {self.name!r} that holds the replay buffer gave no answer within {self.timeout} s"
            ) from error

    def _call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        return self._ask("call", name, packed(arguments), packed(keywords))

    def add(self, data: Any) -> Any:
        """Store one row; see :meth:`ReplayBuffer.add`."""
        return self._call("add", data)

    def extend(self, data: Any, **keywords: Any) -> Tensor:
        """Store many rows; see :meth:`ReplayBuffer.extend` (keywords: those of the buffer's class)."""
        slots: Tensor = self._call("extend", data, **keywords)
        return slots

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch; see :meth:`ReplayBuffer.sample`."""
        return self._call("sample", batch_size, return_info)

    def update_priority(self, index: Any, priority: Any, generation: Any = None) -> None:
        """Hand raw priorities to the sampler; see :meth:`ReplayBuffer.update_priority`."""
        self._call("update_priority", index, priority, generation)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Take priorities from a sample; only its index, its generation and its priorities travel."""
        key = self._ask("read", "priority_key")
        wanted = [name for name in ("index", "index_generation", key) if data.get(name, None) is not None]
        self._call("update_tensordict_priority", data.select(*wanted))

    def empty(self) -> None:
        """Forget all rows."""
        self._call("empty")

    def stats(self) -> BufferStats:
        """What the buffer has been used for so far."""
        found: BufferStats = self._call("stats")
        return found

    def __len__(self) -> int:
        return int(self._call("__len__"))

    def __getitem__(self, index: Any) -> Any:
        """Copies of rows; see :meth:`ReplayBuffer.__getitem__`."""
        return self._call("__getitem__", index)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite rows; see :meth:`ReplayBuffer.__setitem__`."""
        self._call("__setitem__", index, data)

    def __iter__(self) -> Iterator[Any]:
        """Batches until the sampler has gone through the rows once; clients that iterate at once share the pass."""
        if self.batch_size is None:
            raise ReplayBufferError("iteration needs a batch size: pass batch_size= to the buffer")
        self._ask("begin_epoch")
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        while True:
            over, batch = self._ask("next_of_epoch")
            if over:
                return
            yield batch

    @property
    def write_count(self) -> int:
        """How many rows were ever offered."""
        return int(self._ask("read", "write_count"))

    def append_transform(self, transform: Any, *, invert: bool = False) -> None:
        """Add a transform at the end, in the actor."""
        self._call("append_transform", transform, invert=invert)

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """The buffer's state, copied here."""
        state: dict[str, Any] = self._call("state_dict")
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Have the buffer take over a state."""
        self._call("load_state_dict", dict(state_dict))

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state into a folder on the actor's machine."""
        self._call("dumps", os.path.abspath(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read such a folder."""
        self._call("loads", os.path.abspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """The same as :meth:`dumps`."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """The same as :meth:`loads`."""
        self.loads(path)

    # ------------------------------------------------------------------------------------------------ the end
    def close(self) -> None:
        """End the actor, where this object has made it; other clients get an error from then on."""
        actor, self._actor = self._actor, None
        if actor is not None and self._owner and ray.is_initialized():
            ray.kill(actor)

    def shutdown(self) -> None:
        """End the actor, and Ray too where this object has started it."""
        self.close()
        if self._started_ray and ray.is_initialized():
            self._started_ray = False
            ray.shutdown()

    def __repr__(self) -> str:
        return f"RayReplayBuffer({self.name!r}, batch_size={self.batch_size})"


def _start_ray(config: Mapping[str, Any] | None) -> bool:
    """Start Ray, or connect to it; whether that was needed."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"include_dashboard": False} if config is None else dict(config)
    if "address" not in options:  # Ray's own default, a niceness of 15, lets its workers starve beside a learner
        options.setdefault("_system_config", {"worker_niceness": 0})
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ReplayBufferError(f"Ray cannot be started with {config}: {error}") from error
    return True


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
