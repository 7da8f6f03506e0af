"""The debug switch: with checks on, every step of every environment is validated, not only the first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["checked_mode", "checks_enabled"]

_enabled: bool | None = None


def checks_enabled() -> bool:
    """Whether every step is checked: inside :func:`checked_mode`, or with the variable ``RL_CHECKS=1``."""
    global _enabled
    if _enabled is None:
        _enabled = os.environ.get("RL_CHECKS", "") not in ("", "0")
    return _enabled


@contextmanager
def checked_mode(enabled: bool = True) -> Iterator[None]:
    """Check each action, observation, reward and end flag against its spec.

    >>> with checked_mode():
    ...     checks_enabled()
    True
    """
    global _enabled
    before = checks_enabled()
    _enabled = enabled
    try:
        yield
    finally:
        _enabled = before
