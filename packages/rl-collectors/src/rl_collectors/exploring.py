"""The exploration type while a collector acts, in force for its own thread where the caller trains beside it."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager

from rl_core.exploration import ExplorationType, set_exploration_type

__all__ = ["exploring"]


def exploring(kind: ExplorationType | None, own_thread: bool) -> AbstractContextManager[None]:
    """A block in which policies act so.

    Args:
        kind: the exploration type; None leaves each module its default.
        own_thread: leave other threads alone. Where tensordict cannot tell threads apart (before 0.15) the whole
            process sees it.
    """
    if own_thread and "thread_local" in inspect.signature(set_exploration_type.__init__).parameters:
        return set_exploration_type(kind, thread_local=True)
    return set_exploration_type(kind)
