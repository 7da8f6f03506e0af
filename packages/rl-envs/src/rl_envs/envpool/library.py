"""The import of EnvPool, with the pip command where it is not installed; its names can be imported without it."""

from __future__ import annotations

from typing import Any

from rl_core.registry import missing_extra

__all__ = ["envpool_module"]


def envpool_module() -> Any:
    """The module of EnvPool.

    Raises:
        PluginNotInstalledError: it is not installed.
    """
    try:
        import envpool
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise
        raise missing_extra("envpool", "rl-envs", "envpool") from error
    return envpool
