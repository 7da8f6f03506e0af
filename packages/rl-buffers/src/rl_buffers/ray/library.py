"""The import of Ray, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import ray as ray
    import ray.exceptions
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise missing_extra("ray", "rl-buffers", "ray") from error

__all__ = ["ray"]
