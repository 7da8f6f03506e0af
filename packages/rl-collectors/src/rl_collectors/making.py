"""An environment from whatever a user gives for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_core import registry
from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError

__all__ = ["as_device", "made_env"]


def made_env(source: Any, kwargs: Mapping[str, Any], name: str = "create_env_fn") -> tuple[EnvBase, bool]:
    """The environment, and whether it was made here.

    Args:
        source: an environment, a function or ``EnvRef`` that makes one, or a name such as ``"gym:CartPole-v1"``.
        kwargs: arguments for making it.
        name: of the argument, for messages.
    """
    if isinstance(source, EnvBase):
        return source, False
    if isinstance(source, str):
        return registry.envs.make(source, **kwargs), True
    if not callable(source):
        raise CollectorError(
            f"{name} is an environment, a function that makes one, an EnvRef or a name such as "
            f"'gym:CartPole-v1', got {type(source).__name__}"
        )
    env = source(**kwargs)
    if not isinstance(env, EnvBase):
        raise CollectorError(f"{name} returned {type(env).__name__}, not an environment (EnvBase)")
    return env, True


def as_device(own: torch.device | str | None, default: torch.device | str | None = None) -> torch.device | None:
    """The device of its own, else the default."""
    chosen = default if own is None else own
    return None if chosen is None else torch.device(chosen)
