"""Ctrl-C (and a polite kill) as a request: the update under way is finished first, so that what is saved is whole."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopRequest"]

_NOTICE = b"\nStopping after this update; press Ctrl-C again to stop at once.\n"


class StopRequest:
    """While entered, SIGINT and SIGTERM set :attr:`made` instead of raising; a second SIGINT raises KeyboardInterrupt.

    Only the main thread can catch signals; elsewhere this does nothing.

    Attributes:
        made: whether somebody asked to stop.
    """

    def __init__(self) -> None:
        self.made = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        self.made = False
        if threading.current_thread() is threading.main_thread():
            self._previous = {code: signal.signal(code, self._handle) for code in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for code, handler in self._previous.items():
            signal.signal(code, handler)
        self._previous = {}

    def _handle(self, code: int, frame: FrameType | None) -> None:
        if self.made:
            raise KeyboardInterrupt
        self.made = True
        os.write(2, _NOTICE)  # not print: a signal may come in the middle of one
