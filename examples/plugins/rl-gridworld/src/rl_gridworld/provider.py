"""The provider `gridworld`: from an id to an environment. Listing ids imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_core.registry import unknown_id

if TYPE_CHECKING:
    from rl_gridworld.env import GridWorldEnv

__all__ = ["GridWorldProvider"]

SIZES = {f"{size}x{size}": size for size in (4, 8, 16)}


class GridWorldProvider:
    """Makes gridworlds by their size."""

    def make(self, id: str, **kwargs: Any) -> GridWorldEnv:
        """Build an environment; keyword arguments go to :class:`GridWorldEnv`."""
        from rl_gridworld.env import GridWorldEnv

        return GridWorldEnv(self._size(id), **kwargs)

    def ids(self) -> list[str]:
        """The sizes."""
        return list(SIZES)

    def describe(self, id: str) -> dict[str, Any]:
        """Facts about one of them."""
        size = self._size(id)
        return {
            "cells": size**2,
            "actions": "up, right, down, left",
            "reward": "-1 a step, until the goal in the last corner is reached",
            "best return": f"minus the distance to the goal, {2 - 2 * size} from the first corner",
        }

    def _size(self, id: str) -> int:
        if id not in SIZES:
            raise unknown_id("gridworld", id, self.ids())
        return SIZES[id]
