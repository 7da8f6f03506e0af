"""Loggers by name, and names for experiments."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rl_core.training.logger import Logger

__all__ = ["generate_exp_name", "get_logger"]


def get_logger(
    logger_type: str | None,
    logger_name: str | Path,
    experiment_name: str,
    *,
    wandb_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Logger | None:
    """The logger of a kind, by its registry name.

    Args:
        logger_type: a name of the group ``rl_core.loggers`` (``"csv"``, ``"tensorboard"`` ...); None or ``""``: none.
        logger_name: the folder of runs (``log_dir``).
        experiment_name: the run's name.
        wandb_kwargs: further arguments that only the kind ``"wandb"`` gets.
        **kwargs: further arguments of the logger.

    Raises:
        PluginError: no such kind, or its package is absent.
    """
    if not logger_type:
        return None
    from rl_core import registry

    extra = dict(wandb_kwargs or {}) if logger_type == "wandb" else {}
    logger: Logger = registry.loggers.get(logger_type)(
        exp_name=experiment_name, log_dir=logger_name, **{**kwargs, **extra}
    )
    return logger


def generate_exp_name(model_name: str, experiment_name: str) -> str:
    """A name that is used once: model, experiment, eight random characters and the time.

    Example:
        >>> generate_exp_name("ppo", "cartpole").startswith("ppo_cartpole_")
        True
    """
    return f"{model_name}_{experiment_name}_{uuid.uuid4().hex[:8]}_{datetime.now():%y_%m_%d-%H_%M_%S}"
