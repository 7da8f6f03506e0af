"""The loop of a server: take a batch of requests, call the policy once, answer; in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from rl_collectors.inference.queueing import RequestQueue
from rl_collectors.inference.requests import Reply, Request
from rl_collectors.inference.served_policy import ServedPolicy
from rl_collectors.inference.stats import InferenceStats
from rl_collectors.process.failure import Failure
from rl_core.errors import CollectorError

__all__ = ["ServingLoop"]


class ServingLoop:
    """Serves one policy until it is stopped.

    An exception of the policy goes to those whose rows were in the call; the loop goes on.

    Args:
        policy: what answers.
        queue: where requests wait.
    """

    def __init__(self, policy: ServedPolicy, queue: RequestQueue) -> None:
        self.policy, self.queue = policy, queue
        self.stats = InferenceStats()
        self._errands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._under_way: list[Request] = []
        self._thread = threading.Thread(target=self._run, name="InferenceServer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.stats.reset()
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether requests are being answered."""
        return self._thread.is_alive() and self.queue.ended is None

    def between_calls(self, errand: Callable[[], Any]) -> Any:
        """Run a function in the loop's thread, between two calls of the policy; returns what it returns.

        Raises:
            CollectorError: the server has ended.
        """
        done: Future[Any] = Future()
        self._errands.append((errand, done))
        self.queue.call()
        while not done.done() and self._thread.is_alive():
            wait([done], 1.0)
        if not done.done():
            raise CollectorError(f"the inference server has ended: {self.queue.ended}")
        return done.result()

    def stop(self, why: str, timeout: float = 5.0) -> bool:
        """End after the call under way, and tell all who wait.

        Returns:
            Whether the loop ended in time; if not, those in the call under way are told all the same.
        """
        self.queue.end(why)
        if self._thread.ident is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        if not self._thread.is_alive():
            return True
        for request in list(self._under_way):
            request.answer(Reply(ended=f"{why} (its policy did not return within {timeout:g} s)"))
        return False

    # ---------------------------------------------------------------- the thread
    def _run(self) -> None:
        why = "its loop broke"
        try:
            while self.queue.ended is None:
                requests = self.queue.take()
                self._run_errands()
                if requests:
                    self._serve(requests)
        except BaseException as error:
            why = f"its loop broke: {type(error).__name__}: {error}"
            raise
        finally:
            self.queue.end(why)
            self._run_errands()

    def _run_errands(self) -> None:
        while self._errands:
            errand, done = self._errands.popleft()
            try:
                done.set_result(errand())
            except Exception as error:
                done.set_exception(error)

    def _serve(self, requests: list[Request]) -> None:
        begun = time.monotonic()
        self._under_way = requests
        failure: Failure | None = None
        try:
            outputs = self.policy.act(requests)
        except BaseException as error:
            failure = Failure.of(error, -1, f"acting on {sum(request.rows for request in requests)} rows")
            if not isinstance(error, Exception):
                self._answer_failure(requests, failure)
                raise
        rows = sum(request.rows for request in requests)
        waited = [max(0.0, begun - request.since) for request in requests]
        self.stats.count(rows, waited, time.monotonic() - begun, failure is not None)
        if failure is not None:
            self._answer_failure(requests, failure)
        else:
            version = self.policy.version
            for request, own in zip(requests, outputs, strict=True):
                request.answer(Reply(own, version))
        self._under_way = []

    def _answer_failure(self, requests: list[Request], failure: Failure) -> None:
        for request in requests:
            request.answer(Reply(version=self.policy.version, failure=failure))
