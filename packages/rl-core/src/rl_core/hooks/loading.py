"""Loading the installed hook plugins once, each on its own, and firing hooks through them."""

from __future__ import annotations

from typing import Any

from rl_core import registry as _registry
from rl_core.errors import PluginError
from rl_core.hooks.manager import HookManager
from rl_core.registry.switches import disabled_by

__all__ = ["call", "load"]

_KEY = "hooks"


def load() -> HookManager:
    """The hook manager with every installed plugin of ``rl_core.hooks``, loaded at the first call and kept.

    A plugin that cannot be used is left out with exactly one :class:`PluginWarning` that names its distribution and the
    cure. ``RL_STRICT_PLUGINS=1`` makes it an error, ``RL_DISABLE_PLUGINS`` silences it. Inside ``registry.isolated()``
    there is another manager.

    Raises:
        PluginError: in strict mode, a plugin cannot be used.
    """
    extras = _registry.memory().extras
    manager: HookManager | None = extras.get(_KEY)
    if manager is None:
        manager = HookManager()
        _load_installed(manager)
        extras[_KEY] = manager  # not before: in strict mode the next call must fail as well
    return manager


def call(hook: str, /, **arguments: Any) -> list[Any]:
    """Fire a hook: every plugin's function is called, the last registered first.

    A plugin whose function raises is left out from then on, with one warning (an error in strict mode); the others are
    called all the same. KeyboardInterrupt and SystemExit pass.

    Args:
        hook: the hook's name, as in :mod:`rl_core.hooks.specs`.
        **arguments: all arguments of the hook, by name.

    Returns:
        The results that are not None.

    Raises:
        PluginError: no such hook, an argument is missing, or a plugin failed in strict mode.
    """
    manager: HookManager | None = _registry.memory().extras.get(_KEY)
    return (manager or load()).fire(hook, arguments)


def _load_installed(manager: HookManager) -> None:
    for name, plugin in _registry.hooks.registered().items():
        manager.register(plugin, name)
    for entry in _registry.hooks.entries():
        if disabled_by(entry) is not None:
            continue
        try:
            plugin = _registry.hooks.get(entry.qualified)
        except PluginError as error:
            manager.leave_out(entry.qualified, entry.dist, error)
        else:
            manager.add(entry.qualified, plugin, entry.dist)
