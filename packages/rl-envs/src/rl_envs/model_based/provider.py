"""The provider ``model_based`` of the registry: ``registry.envs.make("model_based:Dreamer", world_model=...)``."""

from __future__ import annotations

from typing import Any

from rl_core.registry import unknown_id

__all__ = ["ModelBasedProvider"]


class ModelBasedProvider:
    """Makes environments around world models, which are given as arguments."""

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build an environment; keyword arguments go to its class."""
        return self._class(id)(**kwargs)

    def ids(self) -> list[str]:
        """The names of the environments."""
        return ["Dreamer", "Imagined"]

    def describe(self, id: str) -> str:
        """The first sentence of the class."""
        return f"{id}: {(self._class(id).__doc__ or '').strip().splitlines()[0]}"

    def _class(self, id: str) -> Any:
        if id == "Dreamer":
            from rl_envs.model_based.dreamer import DreamerEnv

            return DreamerEnv
        if id == "Imagined":
            from rl_envs.model_based.imagined import ImaginedEnv

            return ImaginedEnv
        raise unknown_id("model_based", id, self.ids())
