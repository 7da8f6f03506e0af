"""The recurrent mode: whether recurrent modules read single steps or whole sequences, and where those begin to count.

A loss or an estimator enters it, every recurrent module in its reach obeys, whichever package the module is from.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token

__all__ = ["recurrent_burn_in", "recurrent_mode", "set_recurrent_mode"]

_MODES = {"recurrent": True, "sequential": False, True: True, False: False, None: None}
_mode: ContextVar[bool | None] = ContextVar("recurrent_mode", default=None)
_burn_in: ContextVar[int] = ContextVar("recurrent_burn_in", default=0)


class set_recurrent_mode(ContextDecorator):  # noqa: N801 (the published name)
    """Let recurrent modules read sequences ``[*B, T]`` (True) or single steps ``[*B]``; a context or a decorator.

    The mode is that of the current thread.

    Args:
        mode: True or "recurrent"; False or "sequential" (one step after the other); None leaves each module its
            ``default_recurrent_mode``.
        burn_in: the first steps of sequences, which only bring the state up to date: no gradient flows through them.

    >>> with set_recurrent_mode(True):
    ...     recurrent_mode()
    True
    >>> recurrent_mode() is None
    True
    """

    def __init__(self, mode: bool | str | None = True, *, burn_in: int = 0) -> None:
        if mode not in _MODES:
            raise ValueError(f"set_recurrent_mode takes True, False, None, 'recurrent' or 'sequential'; got {mode!r}")
        if burn_in < 0:
            raise ValueError(f"set_recurrent_mode takes a burn_in of 0 steps or more; got {burn_in}")
        self.mode, self.burn_in = _MODES[mode], burn_in
        self._tokens: list[tuple[Token[bool | None], Token[int]]] = []

    def __enter__(self) -> set_recurrent_mode:
        self._tokens.append((_mode.set(self.mode), _burn_in.set(self.burn_in)))
        return self

    def __exit__(self, *exc_info: object) -> None:
        mode, burn_in = self._tokens.pop()
        _mode.reset(mode)
        _burn_in.reset(burn_in)

    def _recreate_cm(self) -> set_recurrent_mode:
        """A context of its own for each call of a decorated function, which may run in several threads."""
        return type(self)(self.mode, burn_in=self.burn_in)


def recurrent_mode() -> bool | None:
    """The mode in force: True for sequences, False for steps, None outside of any :class:`set_recurrent_mode`."""
    return _mode.get()


def recurrent_burn_in() -> int:
    """The number of first steps through which sequences give no gradient, as :class:`set_recurrent_mode` says."""
    return _burn_in.get()
