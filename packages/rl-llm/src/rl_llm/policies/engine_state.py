"""``EngineState``: what all policies over one engine share."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["EngineState"]


class EngineState:
    """A lock, so that weights never change in the middle of a call, and the version of the weights."""

    def __init__(self, version: int = 0) -> None:
        self.lock = threading.RLock()
        self.version = version

    def __getstate__(self) -> dict[str, Any]:
        return {"version": self.version}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["version"])  # type: ignore[misc]
