"""The import of minari, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import gymnasium as gymnasium
    import minari as minari
    from minari.storage.datasets_root_dir import get_dataset_path as get_dataset_path
except ModuleNotFoundError as error:
    if error.name not in ("minari", "gymnasium"):
        raise
    raise missing_extra(error.name, "rl-buffers", "minari") from error

__all__ = ["get_dataset_path", "gymnasium", "minari"]
