"""``Background``: a thread that collects beside training, and waits where it would run ahead of the learner."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rl_core.errors import CollectorError

__all__ = ["Background"]


class Background:
    """Calls a function over and over in a thread.

    Args:
        collect: makes and delivers one batch; False when there is nothing more to do.
        may_begin: whether the next batch may be begun; asked again after :meth:`wake`.
    """

    def __init__(self, collect: Callable[[], bool], may_begin: Callable[[], bool]) -> None:
        self._collect, self._may_begin = collect, may_begin
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="LLMCollector", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._wait() and self._collect():
                pass
        except BaseException as error:  # the thread has nobody to tell it; raise_error does
            self._error = error

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._may_begin())
            return not self._stopped

    def wake(self) -> None:
        """Ask again whether the next batch may be begun."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the batch under way be finished, and end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def is_alive(self) -> bool:
        """Whether there is more to come."""
        return self._thread.is_alive()

    def raise_error(self) -> None:
        """Raise what ended the thread, if it was an error; once.

        Raises:
            CollectorError: from that error.
        """
        error, self._error = self._error, None
        if error is not None:
            raise CollectorError(f"collecting failed in its thread: {type(error).__name__}: {error}") from error
