"""``CollectorActor``: the actor's side, a worker that steps an environment, and what its owner can ask of it.

Orders run one after the other in one thread. What must be answered meanwhile runs beside them: signs of life, new
weights (which wait for the gap between two policy calls), an early end.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from rl_collectors.process.control import WORDS, Control
from rl_collectors.process.failure import Failure
from rl_collectors.process.settings import WorkerSettings
from rl_collectors.process.worker import CollectorWorker, Order
from rl_collectors.ray.handover import Handover, HandoverSettings
from rl_collectors.ray.library import ray
from rl_collectors.ray.nested import NestedWorker
from rl_collectors.ray.travel import Chunks, SentBatch

__all__ = ["ASIDE", "CollectorActor"]

ASIDE = "aside"
"""The concurrency group of calls that do not wait for orders."""

Reply = tuple[Any, ...]


class _Stopped(BaseException):
    """The owner wants no more."""


@dataclass
class _Request:
    """New weights that wait to be taken; also the source that a receiver reads their parts from."""

    model_id: str
    version: int
    parts: deque[Any]
    answer: Reply | None = None

    def read_bytes(self) -> bytearray:
        """The next part."""
        return bytearray(self.parts.popleft())

    def read_memory(self, size: int) -> Any:
        """Actors share no memory with their owner."""
        raise TypeError("weights come to a Ray actor as bytes; use RayWeightSyncScheme")


class CollectorActor:
    """Follows its owner's orders; a reply is ``(kind, ...)``, and a failure is one of them.

    Args:
        index: of the worker.
    """

    def __init__(self, index: int) -> None:
        self.index, self.phase = index, "starting"
        self.control = Control(bytearray(8 * WORDS), 0)
        self.worker: CollectorWorker | NestedWorker | None = None
        self.handover: Handover | None = None
        self.receivers: dict[str, Any] = {}
        self.turn = threading.Condition()
        self.at_work = False
        self.requests: deque[_Request] = deque()

    # ---------------------------------------------------------------- orders, one after the other
    def begin(
        self, settings: bytes, policy: bytes, handover: bytes, workers: int, seed: int, first_id: int, timeout: float
    ) -> Reply:
        """Build the environment and the policy; ("ready", facts, where this is)."""

        def work() -> Reply:
            self.phase = "unpacking its settings"
            given: WorkerSettings = pickle.loads(settings)
            given = replace(given, policy=pickle.loads(policy), seed=seed)
            own: HandoverSettings | None = pickle.loads(handover)
            torch.set_num_threads(given.num_threads)
            self.phase = "building its environment and policy"
            self.receivers = dict(given.receivers)
            if workers > 1:
                self.worker = NestedWorker(given, workers, timeout)
            else:
                self.worker = CollectorWorker(given, self.control, self._attend)
            facts = self.worker.facts
            self.handover = None if own is None else Handover(own, self.index, facts, first_id)
            return "ready", facts, _whereabouts()

        return self._reply("starting", work)

    def gather(self, slot: int, order: Order) -> Reply:
        """Collect a batch; ("batch", a SentBatch)."""

        def work() -> Reply:
            assert self.worker is not None
            chunks = Chunks()
            gathered = self.worker.gather(order, chunks.store)
            if self.handover is None:
                return "batch", chunks.sent(slot, gathered)
            self.phase = "handing its batch to the buffer"
            self.handover.give(chunks.joined(), gathered)
            return "batch", SentBatch(slot, gathered, next_id=self.handover.counter.ids.next_id)

        return self._reply("collecting", work)

    def seed(self, seed: int) -> Reply:
        """Seed everything here."""
        return self._reply("seeding", lambda: self._done(lambda worker: worker.set_seed(seed)))

    def state(self) -> Reply:
        """The worker's state."""
        return self._reply("saving its state", lambda: self._done(lambda worker: worker.state_dict()))

    def load(self, state: dict[str, Any]) -> Reply:
        """Take a state back."""
        return self._reply("taking its state back", lambda: self._done(lambda worker: worker.load_state_dict(state)))

    def catch_up(self, model_id: str, version: int, *parts: Any) -> Reply:
        """Take the weights that the others have, before any order."""
        return self._reply("taking new weights", lambda: self._taken(_Request(model_id, version, deque(parts))))

    def close(self) -> Reply:
        """Close what was made here."""
        try:
            if self.worker is not None:
                self.worker.close()
        except BaseException as error:
            return "failed", Failure.of(error, self.index, "closing")
        return ("done", None)

    def _done(self, work: Callable[[Any], Any]) -> Reply:
        return "done", work(self.worker)

    def _reply(self, phase: str, work: Callable[[], Reply]) -> Reply:
        with self.turn:
            self.at_work, self.phase = True, phase
        try:
            self._attend()
            return work()
        except _Stopped:
            return ("stopped",)
        except BaseException as error:  # it travels to the owner, who raises it
            return "failed", Failure.of(error, self.index, self.phase)
        finally:
            with self.turn:
                self.at_work, self.phase = False, "waiting"
                self.turn.notify_all()

    # ---------------------------------------------------------------- beside the orders
    @ray.method(concurrency_group=ASIDE)
    def take_weights(self, model_id: str, version: int, *parts: Any) -> Reply:
        """Take new weights between two policy calls, or at once where nothing is being done.

        Returns:
            ("taken", None) or ("refused", what went wrong).
        """
        request = _Request(model_id, version, deque(parts))
        with self.turn:
            self.requests.append(request)
            self.control.call()
            self.turn.wait_for(lambda: request.answer is not None or not self.at_work)
            if request.answer is None:
                self._take_waiting()
        assert request.answer is not None
        return request.answer

    @ray.method(concurrency_group=ASIDE)
    def progress(self) -> tuple[int, str]:
        """A number that moves with the work, and what is being done."""
        nested = self.worker.progress if isinstance(self.worker, NestedWorker) else 0
        return self.control.progress + nested, self.phase

    @ray.method(concurrency_group=ASIDE)
    def whereabouts(self) -> str:
        """The traceback of each thread that runs code of ours or of the environment."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = threading.get_ident()
        return "\n".join(
            f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame)).rstrip()
            for ident, frame in sys._current_frames().items()
            if ident != own
        )

    @ray.method(concurrency_group=ASIDE)
    def cut(self, batch: int) -> None:
        """End batch number ``batch`` with the steps that it has."""
        self.control.cut(batch)

    @ray.method(concurrency_group=ASIDE)
    def stop(self) -> None:
        """Give up what is being done."""
        self.control.stop()

    # ---------------------------------------------------------------- weights
    def _attend(self) -> None:
        """Between two policy calls: stop, or take weights."""
        if self.control.stopped:
            raise _Stopped
        with self.turn:
            self._take_waiting()
            self.turn.notify_all()

    def _take_waiting(self) -> None:
        while self.requests:
            request = self.requests.popleft()
            phase, self.phase = self.phase, "taking new weights"
            request.answer = self._taken(request)
            self.phase = phase

    def _taken(self, request: _Request) -> Reply:
        try:
            assert self.worker is not None
            weights = self.receivers[request.model_id].receive(request)
            self.worker.take_weights(request.model_id, request.version, weights)
        except Exception as error:  # the worker goes on with the weights it has; the sender raises
            return "refused", Failure.of(error, self.index, "taking new weights")
        return "taken", None


def _whereabouts() -> str:
    """Where this actor is, in words."""
    context = ray.get_runtime_context()
    return (
        f"Ray actor {context.get_actor_id()}, process {os.getpid()} on node {context.get_node_id()} "
        f"({ray.util.get_node_ip_address()})"
    )
