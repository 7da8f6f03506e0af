"""The import of VMAS, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import vmas as vmas
except ModuleNotFoundError as error:
    if error.name != "vmas":
        raise
    raise missing_extra("vmas", "rl-marl", "vmas") from error

__all__ = ["vmas"]
