"""The import of PettingZoo (and of gymnasium, whose spaces it uses), with the pip command where one is absent."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import gymnasium as gymnasium
    import pettingzoo as pettingzoo
except ModuleNotFoundError as error:
    if error.name not in ("pettingzoo", "gymnasium"):
        raise
    raise missing_extra(error.name, "rl-marl", "pettingzoo") from error

__all__ = ["gymnasium", "pettingzoo"]
