"""Evaluations in a process of their own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from rl_collectors.background import StoppedError
from rl_collectors.evaluation.failures import died, failed
from rl_collectors.evaluation.serving import BUILDING, serve
from rl_collectors.evaluation.settings import EvaluationSettings, Job
from rl_collectors.process.payload import packed_settings
from rl_core.errors import CollectorError

__all__ = ["ProcessRunner"]

_SERVING = "rl_collectors.evaluation.serving"
_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 5.0
_HANG_SECONDS = 30.0


class ProcessRunner:
    """A :class:`~rl_collectors.evaluation.settings.Runner` in a process that starts with it.

    Args:
        settings: of the evaluations.
        start_method: "forkserver" (default where there is one), "spawn" or "fork".
    """

    def __init__(self, settings: EvaluationSettings, start_method: str | None = None) -> None:
        known = multiprocessing.get_all_start_methods()
        method = ("forkserver" if "forkserver" in known else "spawn") if start_method is None else start_method
        if method not in known:
            raise CollectorError(f"mp_start_method is {method!r}; this system has {', '.join(map(repr, known))}")
        forked = method == "fork"
        payload = b"" if forked else packed_settings(settings, "the evaluator's settings")
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([_SERVING])  # torch is imported once, not by every process
        self.settings, self._ready, self._stopped = settings, False, threading.Event()
        self._end: CollectorError | None = None
        own, theirs = context.Pipe()
        self.orders: Connection = own
        self.process: BaseProcess = context.Process(
            target=serve, args=(theirs, [own] if forked else [], settings if forked else None), name="evaluator"
        )
        self.process.start()
        theirs.close()
        self._introduction = [pickle.dumps({} if forked else dict(os.environ)), *([payload] if payload else [])]

    # ---------------------------------------------------------------- evaluations
    def run(self, job: Job) -> dict[str, float]:
        """Evaluate there, and wait for it."""
        if self._end is not None:
            raise CollectorError(f"there is no process left to evaluate in: {self._end}") from self._end
        if not self._ready:
            self._send(self._introduction, BUILDING)
            self._reply(BUILDING, None)
            self._ready, self._introduction = True, []
        self._send([pickle.dumps(job)], job.name)
        result: dict[str, float] = self._reply(job.name, self.settings.timeout)
        return result

    def _send(self, messages: list[bytes], phase: str) -> None:
        try:
            for message in messages:
                self.orders.send_bytes(message)
        except OSError:
            raise self._lost(phase) from None

    def _reply(self, phase: str, timeout: float | None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout + _HANG_SECONDS
        while True:
            try:
                ready = wait([self.orders, self.process.sentinel], _LOOK_SECONDS)
                if self._stopped.is_set():
                    raise StoppedError("the evaluator was shut down during an evaluation")
                if self.orders in ready:
                    kind, said = pickle.loads(self.orders.recv_bytes())
                    if kind == "failed":
                        raise self._given_up(failed(said), phase)
                    return said
            except (EOFError, OSError):
                raise self._lost(phase) from None
            if ready:
                raise self._lost(phase)
            if deadline is not None and time.monotonic() > deadline:
                self.process.kill()
                self._end = CollectorError(
                    f"the evaluator's process hung during {phase}: no step ended for {_HANG_SECONDS:g} s after "
                    f"timeout={timeout:g} s; it was killed. Construct a new evaluator"
                )
                raise self._end

    def _given_up(self, error: CollectorError, phase: str) -> CollectorError:
        if phase == BUILDING:
            self._end = error
        return error

    def _lost(self, phase: str) -> CollectorError:
        if self._stopped.is_set():
            return StoppedError("the evaluator was shut down during an evaluation")
        self.process.join(_GRACE_SECONDS)
        self._end = died(phase, self.process.exitcode)
        return self._end

    # ---------------------------------------------------------------- the end
    def stop(self) -> None:
        """Have the process give up what it does."""
        self._stopped.set()

    def close(self) -> None:
        """End the process: in order within some seconds, else by force."""
        self._stopped.set()
        if self.orders.closed:
            return
        with contextlib.suppress(OSError):  # it has ended
            self.orders.send_bytes(pickle.dumps("close"))
        self.orders.close()
        self.process.join(_GRACE_SECONDS)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(1.0)
        self.process.close()
