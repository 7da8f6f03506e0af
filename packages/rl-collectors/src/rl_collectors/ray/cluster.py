"""Starting Ray, or connecting to a cluster; and values as bytes that its actors can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_collectors.ray.library import ray
from rl_core.errors import CollectorError

__all__ = ["in_bytes", "start_ray"]


def start_ray(config: Mapping[str, Any] | None) -> bool:
    """Start Ray on this machine, or connect to it, unless that was done before.

    Args:
        config: arguments of ``ray.init``, e.g. ``{"address": "auto"}``; None starts it here, without its dashboard. One
            that is started here runs its workers at the priority of other processes: Ray's own default, a niceness of
            15, lets them starve beside a learner.

    Returns:
        Whether it was done here.

    Raises:
        CollectorError: it cannot be started.
    """
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"include_dashboard": False} if config is None else dict(config)
    if "address" not in options:
        options.setdefault("_system_config", {"worker_niceness": 0})
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CollectorError(f"Ray cannot be started with {config}: {error}") from error
    return True


def in_bytes(value: Any, what: str) -> bytes:
    """A value as bytes, functions that cannot be imported elsewhere with their code.

    Raises:
        CollectorError: it cannot be sent; `what` names it.
    """
    try:
        return bytes(ray.cloudpickle.dumps(value))
    except Exception as error:  # pickling raises whatever the objects raise
        raise CollectorError(
            f"{what} cannot be sent to a Ray actor ({type(error).__name__}: {error}). Make what it holds inside of the "
            "function instead, or pass an EnvRef or a name such as 'gym:CartPole-v1'"
        ) from error
