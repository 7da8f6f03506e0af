"""The marks of pluggy for this project: ``hookimpl`` on a plugin's functions, ``hookspec`` on the hooks."""

from __future__ import annotations

import pluggy

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "rl_core"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
