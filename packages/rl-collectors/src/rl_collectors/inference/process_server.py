"""A server in a process of its own, seen from its owner."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from rl_collectors.inference.process_serving import ProcessSettings, serve_policy
from rl_collectors.inference.requests import PolicyFacts
from rl_collectors.inference.wire import Address
from rl_collectors.process.failure import Failure
from rl_collectors.process.memory import SharedMemory
from rl_collectors.process.payload import packed
from rl_core.errors import CollectorError

__all__ = ["ProcessHost"]

_START_SECONDS = 120.0
_PRELOADED = "rl_collectors.process.serving"  # as the worker processes: one fork server for both


class ProcessHost:
    """Starts the process, gives orders, sends weights (:class:`~rl_collectors.weights.scheme.WeightChannel`).

    Args:
        settings: what it is made from.
        start_method: "forkserver" (default where there is one), "spawn" or "fork".
        patience: seconds that an order may take.

    Raises:
        CollectorError: the policy cannot be sent, or made there.
    """

    def __init__(self, settings: ProcessSettings, start_method: str | None = None, patience: float = 60.0) -> None:
        known = multiprocessing.get_all_start_methods()
        method = ("forkserver" if "forkserver" in known else "spawn") if start_method is None else start_method
        if method not in known:
            raise CollectorError(f"mp_start_method is {method!r}; this system has {', '.join(map(repr, known))}")
        self._patience = patience
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._closed = False
        self._asked = 0
        payload = b"" if method == "fork" else packed(settings, "what the inference server is made from")
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([_PRELOADED])
        self._orders, orders = context.Pipe()
        self._weights, weights = context.Pipe()
        own: tuple[Connection, ...] = (self._orders, self._weights) if method == "fork" else ()
        given = settings if method == "fork" else None
        self.process: BaseProcess = context.Process(
            target=serve_policy, args=(orders, weights, own, given), name="InferenceServer", daemon=True
        )
        self.process.start()
        orders.close()
        weights.close()
        self.facts, self.address = self._introduce(payload)

    def _introduce(self, payload: bytes) -> tuple[PolicyFacts, Address]:
        try:
            if payload:
                self._orders.send_bytes(pickle.dumps(dict(os.environ)))
                self._orders.send_bytes(payload)
            kind, *rest = self._hear(self._orders, max(self._patience, _START_SECONDS), "start")
            if kind == "failed":
                raise _told(rest[0])
        except OSError:
            raise self._lost("starting") from None
        except CollectorError:
            self.stop(1.0)
            raise
        return rest[0], rest[1]

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return not self._closed and self.process.is_alive()

    # ---------------------------------------------------------------- orders
    def _ask(self, *order: Any) -> Any:
        with self._lock:
            self._check()
            self._asked += 1
            try:
                self._orders.send_bytes(pickle.dumps((self._asked, *order)))
            except OSError:
                raise self._lost(f"following the order {order[0]!r}") from None
            number = 0
            while number < self._asked:  # an answer that came too late for the one before is passed over
                number, kind, found = self._hear(self._orders, self._patience, f"follow the order {order[0]!r}")
        if kind == "failed":
            raise _told(found)
        return found

    def _hear(self, pipe: Connection, seconds: float, task: str) -> tuple[Any, ...]:
        try:
            if not pipe.poll(seconds):
                raise CollectorError(
                    f"the inference server (process {self.process.pid}) did not {task} within {seconds:g} s: its "
                    "policy takes longer than that, or hangs"
                )
            found: tuple[Any, ...] = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._lost(f"it was asked to {task}") from None
        return found

    def _check(self) -> None:
        if self._closed:
            raise CollectorError("the inference server is shut down")

    def _lost(self, doing: str) -> CollectorError:
        self.process.join(5.0)
        code = self.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
        return CollectorError(
            f"the inference server (process {self.process.pid}) died while {doing} ({how}); its last words are on "
            "stderr"
        )

    def stats(self) -> dict[str, float]:
        """Counts and times."""
        found: dict[str, float] = self._ask("stats")
        return found

    def reset_stats(self) -> None:
        """Count from zero."""
        self._ask("reset_stats")

    def seed(self, seed: int) -> None:
        """Seed its random numbers."""
        self._ask("seed", seed)

    def state_dict(self) -> dict[str, Any]:
        """Weights and version."""
        state: dict[str, Any] = self._ask("state")
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        self._ask("load", dict(state_dict))

    # ---------------------------------------------------------------- weights
    def post(self, model_id: str, version: int, parts: Sequence[Any]) -> None:
        """Ask the process to take weights between two calls."""
        self._check()
        try:
            self._weights.send_bytes(pickle.dumps(version))
            for part in parts:
                if isinstance(part, SharedMemory):
                    part.send(self._weights, self.process.pid or 0)
                else:
                    self._weights.send_bytes(part)
        except OSError:
            raise self._lost("taking new weights") from None

    def wait(self, model_id: str, version: int, deadline: float) -> None:
        """Wait until the process acts with a version."""
        acknowledged, failure = -1, None
        while acknowledged < version:  # a word that came too late for the update before is passed over
            left = max(0.0, deadline - time.monotonic())
            acknowledged, failure = self._hear(self._weights, left, f"take version {version} of {model_id!r}")
        if failure is not None:
            raise _told(failure)

    # ---------------------------------------------------------------- the end
    def stop(self, timeout: float = 5.0) -> list[str]:
        """End the process, within so many seconds, or by force.

        Returns:
            What is to be told, where it came to that.
        """
        if self._closed or os.getpid() != self._owner:
            return []
        self._closed = True
        with suppress(OSError):  # it may have ended
            self._orders.send_bytes(pickle.dumps((0, "close")))
        self._orders.close()
        self._weights.close()
        self.process.join(timeout)
        if not self.process.is_alive():
            return []
        for end in (self.process.terminate, self.process.kill):
            end()
            self.process.join(1.0)
            if not self.process.is_alive():
                break
        return [f"the inference server (process {self.process.pid}) did not end within {timeout:g} s and was killed"]


def _told(failure: Failure) -> CollectorError:
    told = CollectorError(
        f"the inference server failed while {failure.phase}: {failure.summary}\n\nIts traceback:\n{failure.trace}"
    )
    if failure.pickled is not None:
        told.__cause__ = pickle.loads(failure.pickled)
    return told
