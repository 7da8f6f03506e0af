"""The recurrent mode: whether recurrent modules read single steps or whole sequences.

A loss or an estimator enters it, every recurrent module in its reach obeys, whichever package the module is from.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token

__all__ = ["recurrent_mode", "set_recurrent_mode"]

_MODES = {"recurrent": True, "sequential": False, True: True, False: False, None: None}
_mode: ContextVar[bool | None] = ContextVar("recurrent_mode", default=None)


class set_recurrent_mode(ContextDecorator):  # noqa: N801 (the published name)
    """Let recurrent modules read sequences ``[*B, T]`` (True) or single steps ``[*B]``; a context or a decorator.

    The mode is that of the current thread.

    Args:
        mode: True or "recurrent"; False or "sequential" (one step after the other); None leaves each module its
            ``default_recurrent_mode``.

    >>> with set_recurrent_mode(True):
    ...     recurrent_mode()
    True
    >>> recurrent_mode() is None
    True
    """

    def __init__(self, mode: bool | str | None = True) -> None:
        if mode not in _MODES:
            raise ValueError(f"set_recurrent_mode takes True, False, None, 'recurrent' or 'sequential'; got {mode!r}")
        self.mode = _MODES[mode]
        self._tokens: list[Token[bool | None]] = []

    def __enter__(self) -> set_recurrent_mode:
        self._tokens.append(_mode.set(self.mode))
        return self

    def __exit__(self, *exc_info: object) -> None:
        _mode.reset(self._tokens.pop())

    def _recreate_cm(self) -> set_recurrent_mode:
        """A context of its own for each call of a decorated function, which may run in several threads."""
        return type(self)(self.mode)


def recurrent_mode() -> bool | None:
    """The mode in force: True for sequences, False for steps, None outside of any :class:`set_recurrent_mode`."""
    return _mode.get()
