"""The provider ``native`` of the registry: ``registry.envs.make("native:Pendulum")``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rl_core.registry import unknown_id

__all__ = ["NativeProvider"]

_PLACES = {
    "Acrobot": "acrobot",
    "CartPole": "cart_pole",
    "Catch": "catch",
    "MountainCar": "mountain_car",
    "Pendulum": "pendulum",
    "TMaze": "tmaze",
}


class NativeProvider:
    """Makes the environments written in this package."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build an environment; keyword arguments go to its class."""
        return self._class(id)(**kwargs)

    def ids(self) -> list[str]:
        """The names of the environments."""
        return sorted(_PLACES)

    def describe(self, id: str) -> str:
        """The first sentence of the class."""
        return f"{id}: {(self._class(id).__doc__ or '').strip().splitlines()[0]}"

    def _class(self, id: str) -> Any:
        if id not in _PLACES:
            raise unknown_id("native", id, self.ids())
        return getattr(import_module(f"rl_envs.custom.{_PLACES[id]}"), f"{id}Env")
