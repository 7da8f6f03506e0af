"""The import of EnvPool, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import envpool as envpool
except ModuleNotFoundError as error:
    if error.name != "envpool":
        raise
    raise missing_extra("envpool", "rl-envs", "envpool") from error

__all__ = ["envpool"]
