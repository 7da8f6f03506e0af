"""Hooks, to which everyone may react: ``hooks.call("on_batch", run=run, batch=batch)`` fires one."""

from __future__ import annotations

from rl_core.hooks.loading import call as call
from rl_core.hooks.loading import load as load
from rl_core.hooks.manager import HookManager as HookManager
from rl_core.hooks.manager import PluginWarning as PluginWarning
from rl_core.hooks.markers import hookimpl as hookimpl
from rl_core.hooks.markers import hookspec as hookspec
from rl_core.hooks.specs import CommandHooks as CommandHooks
from rl_core.hooks.specs import DoctorHooks as DoctorHooks
from rl_core.hooks.specs import RunHooks as RunHooks

__all__ = [
    "CommandHooks",
    "DoctorHooks",
    "HookManager",
    "PluginWarning",
    "RunHooks",
    "call",
    "hookimpl",
    "hookspec",
    "load",
]
