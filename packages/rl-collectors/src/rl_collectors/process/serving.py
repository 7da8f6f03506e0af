"""A worker's process: it follows orders from one pipe, takes weights from another, and tells what goes wrong."""

from __future__ import annotations

import copy
import faulthandler
import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from rl_collectors.process.control import Control
from rl_collectors.process.failure import Failure
from rl_collectors.process.memory import SharedMemory
from rl_collectors.process.settings import WorkerSettings
from rl_collectors.process.slots import WriteSlot
from rl_collectors.process.worker import ERRANDS, CollectorWorker, Order

__all__ = ["Introduction", "serve"]


@dataclass(frozen=True)
class Introduction:
    """The first thing that a worker hears; the handles of its numbers and of its trace file follow.

    Attributes:
        control_size: bytes of the numbers of all workers.
        trace_size: bytes of the file that tells where it hangs; 0: none.
        environ: the owner's environment variables.
    """

    control_size: int
    trace_size: int
    environ: Mapping[str, str]


class _OwnerGone(BaseException):
    """The owner has closed its end, or has ended."""


class _Stopped(BaseException):
    """The owner wants no more."""


def serve(
    index: int, orders: Connection, weights: Connection, given: WorkerSettings | None, foreign: Sequence[Connection]
) -> None:
    """What a worker's process runs.

    Args:
        index: of the worker.
        orders: pipe of orders and replies.
        weights: pipe of weights and acknowledgements.
        given: its settings, in a forked process; None: they come through the pipe.
        foreign: the owner's ends of pipes, which a forked process has too and must not keep open.
    """
    for pipe in foreign:
        pipe.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the owner decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _Server(index, orders, weights).run(given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as forked processes do; taking the interpreter apart would take seconds


class _Server:
    """Also the source from which receivers of weights read (:class:`~rl_collectors.weights.scheme.WeightSource`)."""

    def __init__(self, index: int, orders: Connection, weights: Connection) -> None:
        self.index, self.orders, self.weights = index, orders, weights
        self.owner = os.getppid()
        self.phase = "starting"
        self.worker: CollectorWorker | None = None
        self.slots: dict[int, WriteSlot] = {}
        self.receivers: dict[str, Any] = {}

    # ---------------------------------------------------------------- life
    def run(self, given: WorkerSettings | None) -> None:
        try:
            self._begin(given)
            while self._follow():
                pass
        except (_OwnerGone, _Stopped):
            pass
        except BaseException as error:
            self._tell_failure(error)
        finally:
            if self.worker is not None:
                self.worker.close()

    def _begin(self, given: WorkerSettings | None) -> None:
        hello: Introduction = pickle.loads(self._read(self.orders))
        os.environ.update(hello.environ)
        self.memory = SharedMemory.receive(self.orders, hello.control_size)
        self.memory.close_handle()
        self.control = Control(self.memory.memory, self.index)
        if hello.trace_size:
            self.trace = SharedMemory.receive(self.orders, hello.trace_size)
            faulthandler.register(signal.SIGUSR1, file=self.trace.handle, all_threads=True)
        self._say("started")
        self.phase = "unpacking its settings"
        if given is None:
            settings: WorkerSettings = pickle.loads(self._read(self.orders))
        else:
            settings = replace(given, policy=copy.deepcopy(given.policy))
        torch.set_num_threads(settings.num_threads)
        self.phase = "building its environment and policy"
        self.receivers = dict(settings.receivers)
        self.worker = CollectorWorker(settings, self.control, self._attend)
        self._say("ready", self.worker.facts)

    def _follow(self) -> bool:
        """Wait for an order, or for weights, and follow it; False at the end."""
        assert self.worker is not None
        self.phase = "waiting"
        if self.orders not in wait([self.orders, self.weights]):
            self._take_weights()
            return True
        order = pickle.loads(self._read(self.orders))
        self.control.advance()
        match order:
            case ("close",):
                return False
            case ("gather", int(slot), Order() as wanted):
                self.phase = "collecting"
                self._attend()
                into = self.slots.setdefault(slot, WriteSlot())
                filled = into.filled(slot, self.worker.gather(wanted, into.store))
                self._say("batch", filled)
                into.told(self.orders, self.owner)
            case (name, *given) if name in ERRANDS:
                self.phase = ERRANDS[name]
                self._say("done", self.worker.run_errand(name, *given))
            case _:
                raise AssertionError(f"an order that no worker knows: {order!r}")
        return True

    def _tell_failure(self, error: BaseException) -> None:
        try:
            self._say("failed", Failure.of(error, self.index, self.phase))
        except _OwnerGone:
            raise error from None  # nobody listens: stderr does

    # ---------------------------------------------------------------- weights
    def _attend(self) -> None:
        """Between two policy calls: stop, or take weights."""
        if self.control.stopped:
            raise _Stopped
        while self.weights.poll():
            self._take_weights()

    def _take_weights(self) -> None:
        phase, self.phase = self.phase, "taking new weights"
        model_id, version = pickle.loads(self._read(self.weights))
        weights: Mapping[str, Tensor] = self.receivers[model_id].receive(self)
        answer: tuple[Any, ...] = ("taken", model_id, version, None)
        try:
            assert self.worker is not None
            self.worker.take_weights(model_id, version, weights)
        except Exception as error:  # the worker goes on with the weights it has; the sender raises
            answer = ("refused", model_id, version, Failure.of(error, self.index, self.phase))
        self._write(self.weights, pickle.dumps(answer))
        self.phase = phase

    def read_bytes(self) -> bytearray:
        """The next part of a request for new weights."""
        return bytearray(self._read(self.weights))

    def read_memory(self, size: int) -> Any:
        """The next part of such a request, memory."""
        shared = SharedMemory.receive(self.weights, size)
        shared.close_handle()
        return shared.memory

    # ---------------------------------------------------------------- pipes
    def _say(self, *reply: Any) -> None:
        self._write(self.orders, pickle.dumps(reply))

    def _write(self, pipe: Connection, message: bytes) -> None:
        try:
            pipe.send_bytes(message)
        except OSError as error:
            raise _OwnerGone from error

    def _read(self, pipe: Connection) -> bytes:
        try:
            return pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise _OwnerGone from error
