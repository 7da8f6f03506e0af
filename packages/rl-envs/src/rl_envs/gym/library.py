"""The import of gymnasium, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import gymnasium as gymnasium
except ModuleNotFoundError as error:
    if error.name != "gymnasium":
        raise
    raise missing_extra("gymnasium", "rl-envs", "gym") from error

__all__ = ["gymnasium"]
