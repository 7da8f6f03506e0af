"""Collecting in a thread of its own, into a replay buffer, while the caller trains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl_core.errors import CollectorError

__all__ = ["Background", "StoppedError"]


class StoppedError(CollectorError):
    """Collecting was given up because its end was asked for."""


class Background:
    """Runs a function again and again in a thread, until it says that it is done.

    An error in it ends the thread, is printed there, and is raised by whatever the caller asks for next.

    Args:
        step: collects one batch; returns False when there is nothing left.
        name: of the thread.
    """

    def __init__(self, step: Callable[[], bool], name: str) -> None:
        self._step = step
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._idle = threading.Lock()  # held while a batch is collected
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether batches are still being collected."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that ended the thread, if one did.

        Raises:
            CollectorError: with that error as its cause.
        """
        if self._error is not None:
            raise CollectorError(f"collecting in the background ended with: {self._error}") from self._error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block no batch is being collected, and none begins."""
        self.check()
        self._go.clear()
        try:
            with self._idle:
                yield
        finally:
            self._go.set()

    def ask_to_stop(self) -> None:
        """Let the batch that is being collected be the last."""
        self._stop.set()
        self._go.set()

    def stop(self, timeout: float | None = None) -> None:
        """End the thread after the batch that is being collected.

        Raises:
            CollectorError: it did not end in time.
        """
        self.ask_to_stop()
        if self._thread is threading.current_thread():
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise CollectorError(
                f"the thread that collects did not end within {timeout} s: a batch takes longer than that, or the "
                "environment hangs"
            )

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._go.wait()
                with self._idle:
                    if self._stop.is_set() or (self._go.is_set() and not self._step()):
                        return
        except BaseException as error:
            if isinstance(error, StoppedError) and self._stop.is_set():
                return
            self._error = error
            raise
