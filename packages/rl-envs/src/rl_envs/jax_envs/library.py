"""The import of JAX, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import jax as jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise missing_extra("jax", "rl-envs", "jax") from error

__all__ = ["jax", "jnp"]
