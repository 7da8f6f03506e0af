"""``WeightSyncScheme``: carries a module's weights from the learner to workers, and waits for their word.

A scheme has two halves. The sender lives with the learner; it posts a request to each worker's channel and waits for
its acknowledgement. The receiver is sent to the worker with its settings; it makes named tensors of what arrives. What
a channel is, is the business of whoever runs the workers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from rl_collectors.process.per_worker import chosen_workers
from rl_collectors.weights.named import named_weights
from rl_core.errors import CollectorError

__all__ = ["WeightChannel", "WeightReceiver", "WeightSource", "WeightSyncScheme"]

_STRATEGIES = ("state_dict", "tensordict")


class WeightChannel(Protocol):
    """The learner's end of the way to one worker."""

    def post(self, model_id: str, version: int, parts: Sequence[Any]) -> None:
        """Ask the worker to take weights; ``parts`` go to its receiver: bytes, or shared memory."""
        ...

    def wait(self, model_id: str, version: int, deadline: float) -> None:
        """Wait for the worker to acknowledge a version; raises if it fails, dies or is late."""
        ...


class WeightSource(Protocol):
    """The worker's end, from which a receiver reads the parts that were posted, in their order."""

    def read_bytes(self) -> bytearray:
        """The next part, bytes."""
        ...

    def read_memory(self, size: int) -> Any:
        """The next part, shared memory of so many bytes."""
        ...


class WeightReceiver(ABC):
    """The worker's half; picklable until its first :meth:`receive`."""

    @abstractmethod
    def receive(self, source: WeightSource) -> Mapping[str, Tensor]:
        """The weights that a request brought; valid until the next one."""


class WeightSyncScheme(ABC):
    """The learner's half, for one module.

    Args:
        strategy: of a module, "state_dict" sends parameters and persistent buffers, "tensordict" all buffers.
        sync: wait in :meth:`send` until every worker acts with the new weights; False waits before the next one.
        timeout: seconds that a worker may take for it.

    Contract: versions grow by one with each ``send``; a worker takes weights between two policy calls, copied in place,
    cast to the dtype and device of its own; a worker that refuses, dies or is late raises.
    """

    def __init__(self, strategy: str = "state_dict", sync: bool = True, timeout: float = 60.0) -> None:
        if strategy not in _STRATEGIES:
            raise CollectorError(f"strategy is {strategy!r}; it is one of {', '.join(map(repr, _STRATEGIES))}")
        self.strategy, self.sync, self.timeout = strategy, sync, timeout
        self.model_id = "policy"
        self._version = 0
        self._channels: Sequence[WeightChannel] | None = None
        self._model: Any = None
        self._awaited: list[tuple[int, int]] = []

    @property
    def version(self) -> int:
        """The version sent last; 0 before any."""
        return self._version

    def restore(self, version: int) -> None:
        """Count on from a version, as a checkpoint holds it."""
        self._version = version

    def connect(self, channels: Sequence[WeightChannel], model_id: str = "policy", model: Any = None) -> None:
        """Say where the workers are.

        Args:
            channels: one for each worker.
            model_id: which module of theirs.
            model: whose weights are sent where :meth:`send` names none.

        Raises:
            CollectorError: the scheme serves another collector.
        """
        if self._channels is not None:
            raise CollectorError(f"this {type(self).__name__} serves a collector already; make one for each")
        self._channels, self.model_id, self._model = channels, model_id, model

    def send(self, weights: Any = None, worker_ids: list[int] | None = None) -> int:
        """Send weights to all workers, or to some.

        Args:
            weights: a module, a state dict or a TensorDict of parameters; default: the model that was given.
            worker_ids: from 0.

        Returns:
            The version, once all of them have acknowledged it (at once where not ``sync``).

        Raises:
            CollectorError: a worker does not acknowledge; there is no such worker; there are no weights.
        """
        channels = self._connected()
        workers = chosen_workers(worker_ids, len(channels))
        source = self._model if weights is None else weights
        if source is None:
            raise CollectorError(
                f"there are no weights for {self.model_id!r}: it is made in the workers. Say whose to send: "
                "update_policy_weights_(policy)"
            )
        self.settle()
        self._post(named_weights(source, self.strategy), [channels[worker] for worker in workers])
        self._awaited = [(worker, self._version) for worker in workers]
        if self.sync:
            self.settle()
        return self._version

    def settle(self) -> None:
        """Wait for the acknowledgements that are due."""
        awaited, self._awaited = self._awaited, []
        deadline = time.monotonic() + self.timeout
        for worker, version in awaited:
            self._connected()[worker].wait(self.model_id, version, deadline)

    def _connected(self) -> Sequence[WeightChannel]:
        if self._channels is None:
            raise CollectorError(
                f"this {type(self).__name__} is not connected; pass it to a collector: weight_sync_schemes={{'policy': "
                "scheme}"
            )
        return self._channels

    def _post(self, weights: Mapping[str, Tensor], channels: Sequence[WeightChannel]) -> None:
        self._version += 1
        parts = self._parts(weights, channels)
        for channel, own in zip(channels, parts, strict=True):
            channel.post(self.model_id, self._version, own)

    @abstractmethod
    def _parts(self, weights: Mapping[str, Tensor], channels: Sequence[WeightChannel]) -> list[Sequence[Any]]:
        """What each worker's receiver gets."""

    @abstractmethod
    def receiver(self) -> WeightReceiver:
        """The half that goes to the workers."""

    def shutdown(self) -> None:
        """Let go of what the scheme holds."""
        self._channels, self._model, self._awaited = None, None, []
