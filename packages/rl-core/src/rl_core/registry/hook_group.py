"""The group ``hooks``: what is registered here reaches a hook manager that is already loaded."""

from __future__ import annotations

from typing import Any

from rl_core.registry.group import Group

__all__ = ["HookGroup"]


class HookGroup(Group):
    """Hook plugins; unlike other names, all of them are used (:func:`rl_core.hooks.load`)."""

    def register(self, name: str, found: Any, *, override: bool = False) -> None:
        super().register(name, found, override=override)
        manager = self._manager()
        if manager is not None:
            if manager.has_plugin(name):
                manager.unregister(name=name)
            manager.register(self.get(name), name)

    def unregister(self, name: str) -> None:
        super().unregister(name)
        manager = self._manager()
        if manager is not None and manager.has_plugin(name):
            manager.unregister(name=name)

    def _manager(self) -> Any:
        # Held for rl_core.hooks, which imports this package and not the other way round.
        return self._shelf.memory.extras.get("hooks")
