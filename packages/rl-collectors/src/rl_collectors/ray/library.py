"""The import of Ray, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import ray as ray
    import ray.cloudpickle
    import ray.exceptions
    import ray.util
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise missing_extra("ray", "rl-collectors", "ray") from error

__all__ = ["ray"]
