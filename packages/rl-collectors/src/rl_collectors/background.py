"""``Background``: collecting in a thread of its own while the caller trains."""

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
        may_begin: whether the next batch may be begun; asked before each, and again after :meth:`wake`. None: always.

    Example:
        >>> batches = []
        >>> collecting = Background(lambda: batches.append(0) or len(batches) < 3, "example")
        >>> collecting.start()
        >>> collecting.join()
        >>> collecting.running, len(batches)
        (False, 3)
    """

    def __init__(self, step: Callable[[], bool], name: str, may_begin: Callable[[], bool] | None = None) -> None:
        self._step, self._may_begin = step, may_begin
        self._changed = threading.Condition()
        self._stopped = False
        self._ready = False  # to begin the next batch
        self._busy = False  # while a batch is collected
        self._pauses = 0
        self._error: BaseException | None = None
        self._told = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._ready = True
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether batches are still being collected, or waited for."""
        return self._thread.is_alive()

    @property
    def failed_untold(self) -> bool:
        """Whether an error has ended the thread that :meth:`check` has not raised yet."""
        return self._error is not None and not self._told

    def check(self) -> None:
        """Raise the error that ended the thread, if one did.

        Raises:
            CollectorError: with that error as its cause.
        """
        if self._error is not None:
            self._told = True
            raise CollectorError(
                f"collecting in the background ended with {type(self._error).__name__}: {self._error}"
            ) from self._error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block no batch is being collected, and none begins; behind it one has begun, if it may.

        A caller that pauses again and again thus does not bring collecting to a standstill.
        """
        self.check()
        with self._changed:
            self._pauses += 1
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._busy)
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: not (self._ready and self._decided()))

    def wake(self) -> None:
        """Ask again whether the next batch may be begun."""
        with self._changed:
            self._changed.notify_all()

    def ask_to_stop(self) -> None:
        """Let the batch that is being collected be the last."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout)

    def stop(self, timeout: float | None = None) -> None:
        """End the thread after the batch that is being collected.

        Raises:
            CollectorError: it did not end in time.
        """
        self.ask_to_stop()
        if self._thread is threading.current_thread():
            return
        self.join(timeout)
        if self.running:
            raise CollectorError(
                f"the thread that collects did not end within {timeout} s: a batch takes longer than that, or the "
                "environment hangs"
            )

    def _run(self) -> None:
        try:
            while self._begin():
                if not self._step():
                    return
                self._settle(ready=True)
        except BaseException as error:
            if isinstance(error, StoppedError) and self._stopped:
                return
            self._error = error
            raise
        finally:
            self._settle(ready=False)

    def _begin(self) -> bool:
        """Wait until the next batch may be begun; False where there shall be none."""
        with self._changed:
            self._changed.wait_for(self._decided)
            self._ready, self._busy = False, not self._stopped
            self._changed.notify_all()
            return self._busy

    def _decided(self) -> bool:
        return self._stopped or (not self._pauses and (self._may_begin is None or self._may_begin()))

    def _settle(self, ready: bool) -> None:
        """A batch is done, or all of them."""
        with self._changed:
            self._ready, self._busy = ready, False
            self._changed.notify_all()
