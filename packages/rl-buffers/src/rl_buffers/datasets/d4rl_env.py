"""D4RL data by way of its environments, which need an old gym and mujoco-py."""

from __future__ import annotations

import importlib
from typing import Any

from rl_buffers.datasets.errors import DatasetError
from rl_core.errors import PluginNotInstalledError

__all__ = ["dataset_of"]


def dataset_of(name: str) -> dict[str, Any]:
    """The arrays that the environment `name` gives as its dataset.

    Raises:
        PluginNotInstalledError: d4rl or gym is absent.
        DatasetError: gym knows no such environment, or cannot make it.
    """
    # No environment of ours has them beside the rest, so that no import of this file may depend on them.
    try:
        importlib.import_module("d4rl")  # it registers its environments
        gym: Any = importlib.import_module("gym")
    except ModuleNotFoundError as error:
        raise PluginNotInstalledError(
            f"from_env=True needs {error.name}: pip install 'gym<0.25', and pip install --no-deps d4rl; "
            "from_env=False reads the same data from their file"
        ) from error
    try:
        env = gym.make(name)
    except Exception as error:  # what a missing simulator raises is not said anywhere
        raise DatasetError(f"gym cannot make {name}: {type(error).__name__}: {error}. Say from_env=False.") from error
    try:
        return dict(env.get_dataset())
    finally:
        env.close()
