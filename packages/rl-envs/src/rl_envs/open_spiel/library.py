"""The import of OpenSpiel, with the pip command where it is not installed; its names can be imported without it."""

from __future__ import annotations

from typing import Any

from rl_core.registry import missing_extra

__all__ = ["pyspiel_module"]


def pyspiel_module() -> Any:
    """The module of OpenSpiel.

    Raises:
        PluginNotInstalledError: it is not installed.
    """
    try:
        import pyspiel
    except ModuleNotFoundError as error:
        if error.name != "pyspiel":
            raise
        raise missing_extra("open_spiel", "rl-envs", "open_spiel") from error
    return pyspiel
