"""Requests that wait, and which of them make the next batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

from rl_collectors.inference.requests import Reply, Request
from rl_core.errors import CollectorError

__all__ = ["RequestQueue"]


class RequestQueue:
    """Gathers requests into batches.

    A batch goes as soon as ``min_rows`` rows wait, and takes what waits, up to ``max_rows``; when the oldest request
    has waited for ``timeout`` seconds it goes with what there is. A request is never split: one of more than
    ``max_rows`` rows goes alone.

    Args:
        max_rows: rows of a batch at most.
        min_rows: rows that are worth a batch.
        timeout: seconds that a request waits for others.

    Raises:
        CollectorError: numbers that make no sense.
    """

    def __init__(self, max_rows: int = 64, min_rows: int = 1, timeout: float = 0.01) -> None:
        if not 1 <= min_rows <= max_rows:
            raise CollectorError(
                f"min_batch_size={min_rows}, max_batch_size={max_rows}; 1 or more, the first at most the second"
            )
        if timeout < 0:
            raise CollectorError(f"timeout={timeout}; a request waits for others for 0 seconds or more")
        self.max_rows, self.min_rows, self.timeout = max_rows, min_rows, timeout
        self.ended: str | None = None
        self._waiting: list[Request] = []
        self._rows = 0
        self._called = False
        self._change = threading.Condition(threading.Lock())

    def put(self, request: Request) -> None:
        """Add a request; it gets its answer at once where the server has ended."""
        with self._change:
            ended = self.ended
            if ended is None:
                self._waiting.append(request)
                self._rows += request.rows
                self._change.notify()
        if ended is not None:
            request.answer(Reply(ended=ended))

    def call(self) -> None:
        """Let :meth:`take` return, whatever waits."""
        with self._change:
            self._called = True
            self._change.notify()

    def take(self) -> list[Request]:
        """Wait for the next batch; empty after :meth:`call` and :meth:`end`. Sleeps meanwhile."""
        with self._change:
            while not self._called and self.ended is None:
                left: float | None = None
                if self._waiting:
                    left = self._waiting[0].since + self.timeout - time.monotonic()
                    if self._rows >= self.min_rows or left <= 0:
                        return self._pick()
                self._change.wait(left)
            self._called = False
            return []

    def end(self, why: str) -> None:
        """Answer all that waits, and all that comes, with the reason for the end."""
        with self._change:
            if self.ended is None:
                self.ended = why
            waiting, self._waiting, self._rows = self._waiting, [], 0
            self._change.notify()
        for request in waiting:
            request.answer(Reply(ended=self.ended))

    def _pick(self) -> list[Request]:
        """The oldest request and those that can be joined to it; no sender is overtaken by itself."""
        first, *others = self._waiting
        picked, kept, rows = [first], [], first.rows
        passed: set[Hashable] = set()
        for request in others:
            if (
                rows + request.rows <= self.max_rows
                and request.sender not in passed
                and request.signature == first.signature
            ):
                picked.append(request)
                rows += request.rows
            else:
                kept.append(request)
                passed.add(request.sender)
        self._waiting = kept
        self._rows -= rows
        return picked
