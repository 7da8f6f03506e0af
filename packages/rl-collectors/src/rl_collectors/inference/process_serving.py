"""What the process of a server runs: it hosts the policy, and follows its owner's orders."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from rl_collectors.inference.host import HostSettings, ThreadHost
from rl_collectors.process.failure import Failure
from rl_collectors.process.memory import SharedMemory
from rl_collectors.weights.scheme import WeightReceiver
from rl_core.training.seeding import seed_everything

__all__ = ["ProcessSettings", "serve_policy"]


@dataclass(frozen=True)
class ProcessSettings:
    """What the process is started with.

    Attributes:
        host: what serves.
        receiver: how weights arrive.
        seed: of its random numbers.
        num_threads: of torch; None: as many as torch likes.
    """

    host: HostSettings
    receiver: WeightReceiver
    seed: int
    num_threads: int | None


def serve_policy(
    orders: Connection, weights: Connection, foreign: tuple[Connection, ...], given: ProcessSettings | None
) -> None:
    """Run until the owner has enough, or is gone.

    Args:
        orders: pipe of orders and replies.
        weights: pipe of weights and acknowledgements.
        foreign: the owner's ends of these, which a forked process has too and must not keep open.
        given: the settings, in a forked process; None: they come through the pipe.
    """
    for pipe in foreign:
        pipe.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the owner decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(EOFError, OSError):  # the owner is gone
        _serve(orders, weights, given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve(orders: Connection, weights: Connection, given: ProcessSettings | None) -> None:
    try:
        if given is None:
            os.environ.update(pickle.loads(orders.recv_bytes()))
            given = pickle.loads(orders.recv_bytes())
        else:
            given = replace(given, host=replace(given.host, policy=copy.deepcopy(given.host.policy)))
        if given.num_threads is not None:
            torch.set_num_threads(given.num_threads)
        seed_everything(given.seed)
        host = ThreadHost(given.host)
        host.loop.start()
        ready = ("ready", host.facts, host.address)
    except Exception as error:
        orders.send_bytes(pickle.dumps(("failed", Failure.of(error, -1, "starting"))))
        return
    orders.send_bytes(pickle.dumps(ready))
    try:
        _follow(orders, weights, host, given.receiver)
    finally:
        host.stop(1.0)


def _follow(orders: Connection, weights: Connection, host: ThreadHost, receiver: WeightReceiver) -> None:
    while True:
        ready = wait([orders, weights], 1.0)
        if not host.alive:
            return
        if weights in ready:
            _take_weights(weights, host, receiver)
        if orders in ready:
            number, *order = pickle.loads(orders.recv_bytes())
            if order == ["close"]:
                return
            orders.send_bytes(pickle.dumps((number, *_answer(host, order))))


def _answer(host: ThreadHost, order: list[Any]) -> tuple[str, Any]:
    try:
        match order:
            case ["stats"]:
                return "done", host.stats()
            case ["reset_stats"]:
                host.reset_stats()
            case ["seed", int(seed)]:
                host.loop.between_calls(lambda: seed_everything(seed))
            case ["state"]:
                return "done", host.state_dict()
            case ["load", dict(state)]:
                host.load_state_dict(state)
            case _:
                raise AssertionError(f"an order that no server knows: {order!r}")
    except Exception as error:
        return "failed", Failure.of(error, -1, f"following the order {order[0]!r}")
    return "done", None


class _Source:
    """From which the receiver reads the parts of new weights."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def read_bytes(self) -> bytearray:
        return bytearray(self.pipe.recv_bytes())

    def read_memory(self, size: int) -> Any:
        shared = SharedMemory.receive(self.pipe, size)
        shared.close_handle()
        return shared.memory


def _take_weights(pipe: Connection, host: ThreadHost, receiver: WeightReceiver) -> None:
    version: int = pickle.loads(pipe.recv_bytes())
    weights: Mapping[str, torch.Tensor] = receiver.receive(_Source(pipe))
    failure: Failure | None = None
    try:
        host.update(version, weights)
    except Exception as error:  # the server goes on with the weights it has; the sender raises
        failure = Failure.of(error, -1, "taking new weights")
    pipe.send_bytes(pickle.dumps((version, failure)))
