"""The import of OpenSpiel, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import pyspiel as pyspiel
except ModuleNotFoundError as error:
    if error.name != "pyspiel":
        raise
    raise missing_extra("open_spiel", "rl-envs", "open_spiel") from error

__all__ = ["pyspiel"]
