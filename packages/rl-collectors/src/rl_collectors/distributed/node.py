"""A worker on another machine: it follows the learner's orders, takes weights, and tells what goes wrong.

The main thread steps the environment. A second one hears the learner, a third one says every half second that the
worker lives and how far it has come.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from rl_collectors.distributed.link import Link, LinkLostError
from rl_collectors.distributed.slots import DepartingSlot
from rl_collectors.process.control import WORDS, Control
from rl_collectors.process.failure import Failure
from rl_collectors.process.settings import WorkerSettings
from rl_collectors.process.worker import ERRANDS, CollectorWorker, Order
from rl_core.errors import CollectorError

__all__ = ["Node"]

_BEAT_SECONDS = 0.5
_GRACE = 5.0


class _EndedError(BaseException):
    """The learner wants no more, or is gone."""


class Node:
    """One worker.

    Args:
        rank: of the worker, from 1.
        store: where it says that it lives.
        link: to the learner.
    """

    def __init__(self, rank: int, store: Store, link: Link) -> None:
        self.rank, self.store, self.link = rank, store, link
        self.phase = "starting"
        self.control = Control(bytearray(8 * WORDS), 0)
        self.worker: CollectorWorker | None = None
        self.slots: dict[int, DepartingSlot] = {}
        self.receivers: dict[str, Any] = {}
        self._news = threading.Condition()
        self._orders: deque[tuple[Any, ...]] = deque()
        self._updates: deque[tuple[str, int, list[bytearray]]] = deque()
        self._rooms: dict[tuple[str, int], bytearray] = {}
        self._grace = _GRACE
        self._broken: Exception | None = None
        self._told_to_end = threading.Event()
        self._done = threading.Event()

    # ---------------------------------------------------------------- life
    def run(self) -> None:
        """Work until the learner says that it is enough; raises what went wrong here, once the learner knows it."""
        threading.Thread(target=self._listen, name="distributed-listener", daemon=True).start()
        threading.Thread(target=self._beat, name="distributed-heart", daemon=True).start()
        try:
            self._begin()
            while self._follow():
                pass
        except (_EndedError, LinkLostError):
            pass
        except BaseException as error:
            self._tell_failure(error)
            raise
        finally:
            try:
                if self.worker is not None:
                    self.worker.close()
            finally:
                self._done.set()
                self.link.close()  # the learner sees that this worker is finished

    def _begin(self) -> None:
        kind, environ, blob = self._next_order()
        assert kind == "settings", f"the learner began with {kind!r}"
        os.environ.update(environ)
        self.phase = "unpacking its settings"
        settings: WorkerSettings = pickle.loads(blob)
        torch.set_num_threads(settings.num_threads)
        self.phase = "building its environment and policy"
        self.receivers = dict(settings.receivers)
        self.worker = CollectorWorker(settings, self.control, self._attend)
        self._say("ready", self.worker.facts)

    def _follow(self) -> bool:
        assert self.worker is not None
        self.phase = "waiting"
        order = self._next_order()
        self.control.advance()
        match order:
            case ("close",):
                return False
            case ("gather", int(slot), Order() as wanted):
                self.phase = "collecting"
                self._attend()
                into = self.slots.setdefault(slot, DepartingSlot())
                filled = into.filled(slot, self.worker.gather(wanted, into.store))
                self.phase = "sending its batch"
                self.link.send(pickle.dumps(("batch", filled)), [into.block()])
                into.sent()
            case (name, *given) if name in ERRANDS:
                self.phase = ERRANDS[name]
                self._say("done", self.worker.run_errand(name, *given))
            case _:
                raise AssertionError(f"an order that no worker knows: {order!r}")
        return True

    def _next_order(self) -> tuple[Any, ...]:
        """Wait for an order, and take weights meanwhile."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._orders or self._updates or self.control.stopped)
            self._attend()
            if self._orders:
                return self._orders.popleft()

    def _tell_failure(self, error: BaseException) -> None:
        try:
            self._say("failed", Failure.of(error, self.rank - 1, self.phase))
            self._told_to_end.wait(_GRACE)  # by then the learner has read it
        except LinkLostError:
            return  # nobody listens: the error goes on to stderr

    def _say(self, *reply: Any) -> None:
        self.link.send(pickle.dumps(reply))

    # ---------------------------------------------------------------- weights
    def _attend(self) -> None:
        """Between two policy calls: stop, or take weights."""
        if self.control.stopped:
            raise _EndedError if self._broken is None else self._broken
        while self._updates:
            self._take_weights(*self._updates.popleft())

    def _take_weights(self, model_id: str, version: int, parts: list[bytearray]) -> None:
        phase, self.phase = self.phase, "taking new weights"
        answer: tuple[Any, ...] = ("taken", model_id, version, None)
        try:
            if self.worker is None:
                raise CollectorError("weights came before the policy was built")
            weights: Mapping[str, Tensor] = self.receivers[model_id].receive(_Parts(parts))
            self.worker.take_weights(model_id, version, weights)
        except Exception as error:  # the worker goes on with the weights it has; the sender raises
            answer = ("refused", model_id, version, Failure.of(error, self.rank - 1, self.phase))
        self._say(*answer)
        self.phase = phase

    # ---------------------------------------------------------------- the other threads
    def _listen(self) -> None:
        try:
            while not self._told_to_end.is_set():
                self._hear(pickle.loads(self.link.receive()))
        except LinkLostError:
            pass  # the learner is gone
        except Exception as error:
            self._broken = error
        with self._news:
            self.control.stop()
            self._news.notify_all()
        self._told_to_end.set()
        if not self._done.wait(self._grace + 2.0):
            os._exit(1)  # the environment hangs, and nobody is there to see it

    def _hear(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("close", float(grace)):
                self._grace = grace
                self._told_to_end.set()
            case ("cut", int(batch)):
                self.control.cut(batch)
            case ("where",):
                self.store.set(f"where/{self.rank}", self._whereabouts())
            case ("weights", str(model_id), int(version), list(sizes)):
                parts = [self._room(model_id, place, size) for place, size in enumerate(sizes)]
                for part in parts:
                    if part:
                        self.link.receive_into(torch.frombuffer(part, dtype=torch.uint8))
                with self._news:
                    self._updates.append((model_id, version, parts))
                    self.control.call()
                    self._news.notify_all()
            case _:
                with self._news:
                    self._orders.append(message)
                    self._news.notify_all()

    def _room(self, model_id: str, place: int, size: int) -> bytearray:
        """Memory for a part of an update; the one before was taken: updates are acknowledged one by one."""
        held = self._rooms.get((model_id, place))
        if held is None or len(held) != size:
            held = self._rooms[model_id, place] = bytearray(size)
        return held

    def _beat(self) -> None:
        count = 0
        while not self._done.wait(_BEAT_SECONDS):
            count += 1
            if self.link.sending.locked():
                self.control.advance()  # a large batch on a slow network is progress
            try:
                self.store.set(f"beat/{self.rank}", f"{count}:{self.control.progress}")
            except RuntimeError:
                return  # the learner is gone; the listener knows

    def _whereabouts(self) -> str:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = ("distributed-listener", "distributed-heart")
        return "\n".join(
            f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if names.get(ident) not in own
        )


class _Parts:
    """A :class:`~rl_collectors.weights.scheme.WeightSource` over what has arrived."""

    def __init__(self, parts: list[bytearray]) -> None:
        self._parts = iter(parts)

    def read_bytes(self) -> bytearray:
        return next(self._parts)

    def read_memory(self, size: int) -> Any:
        raise CollectorError("memory is not shared between machines; use DistributedWeightSyncScheme")
