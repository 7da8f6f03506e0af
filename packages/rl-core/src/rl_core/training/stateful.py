"""The two methods that make a component part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful"]


@runtime_checkable
class Stateful(Protocol):
    """A component whose progress survives the process: module, optimiser, schedule, collector, buffer, counter, RNG.

    A state dict is a tree of dicts, lists, tuples, tensors, arrays, numbers, strings and ``None``: data, never objects
    or code, so that every checkpoint opens under another Python, NumPy or library version. After
    ``b.load_state_dict(a.state_dict())``, ``b`` goes on exactly as ``a`` would.

    Example:
        >>> class Counter:
        ...     def __init__(self):
        ...         self.n = 0
        ...     def state_dict(self):
        ...         return {"n": self.n}
        ...     def load_state_dict(self, state_dict):
        ...         self.n = state_dict["n"]
        >>> isinstance(Counter(), Stateful)
        True
    """

    def state_dict(self) -> Mapping[str, Any]:
        """The whole state as plain data; the values may share memory with the component."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take over a state that :meth:`state_dict` gave, copying what will be changed later."""
        ...
