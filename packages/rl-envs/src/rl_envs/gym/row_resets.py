"""Resetting single rows of a vector environment: by gymnasium's reset mask, or by a function for its class.

A vector environment of the mode NEXT_STEP that cannot do the first would spend a step of the whole batch on every
reset. The second is for such classes whose state is at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rl_core.errors import EnvError
from rl_envs.gym.library import gymnasium

__all__ = ["register_row_reset", "reset_rows_of", "row_reset_of"]

RowReset = Callable[[Any, np.ndarray, "int | None", "dict[str, Any] | None"], "tuple[Any, dict[str, Any]]"]

_KNOWN: dict[type, RowReset] = {}
_MASKED = ("ale_py.vector_env.AtariVectorEnv",)  # takes a reset mask in every mode; named, for it is not imported here
AutoresetMode = gymnasium.vector.AutoresetMode


def register_row_reset(vector_class: type, function: RowReset) -> None:
    """Say how single rows of a class of vector environments are reset.

    Args:
        vector_class: the class of the bare vector environment.
        function: ``function(env, mask, seed, options) -> (observation, info)`` begins episodes in the rows of ``mask``
            (bool ``[N]``), and only there; flags that ask for an autoreset of them must be cleared. It returns what
            ``reset`` of the whole environment returns; the other rows are not looked at.

    Example:
        >>> class Mine(gymnasium.vector.VectorEnv): ...
        >>> def reset_rows(env, mask, seed, options):
        ...     env.count[mask] = 0
        ...     return env.count.copy(), {}
        >>> register_row_reset(Mine, reset_rows)
    """
    _KNOWN[vector_class] = function


def row_reset_of(env: Any) -> RowReset | None:
    """How single rows of this vector environment are reset, autoreset flags included; None where they cannot be."""
    inner = env.unwrapped
    known = next((_KNOWN[cls] for cls in type(inner).__mro__ if cls in _KNOWN), None)
    if f"{type(inner).__module__}.{type(inner).__qualname__}" in _MASKED:
        return _by_mask
    if known is not None:
        return known if inner is env else None  # wrappers would not hear of it
    if isinstance(inner, gymnasium.vector.AsyncVectorEnv):
        # Without shared memory its workers keep their autoreset flag through a reset (gymnasium 1.1 to 1.4).
        masks = inner.shared_memory or inner.autoreset_mode != AutoresetMode.NEXT_STEP
    else:
        masks = (
            isinstance(inner, gymnasium.vector.SyncVectorEnv)
            or env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED
        )
    return _by_mask if masks else None


def _by_mask(env: Any, mask: np.ndarray, seed: Any, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    result: tuple[Any, dict[str, Any]] = env.reset(seed=seed, options={**(options or {}), "reset_mask": mask.copy()})
    return result


def reset_rows_of(
    sim: Any, reset: RowReset | None, mask: np.ndarray, seeds: list[int | None], options: dict[str, Any] | None
) -> tuple[Any, dict[str, Any]]:
    """Begin episodes in some rows of an adapter's vector environment, or in all of them.

    Args:
        sim: the adapter.
        reset: from :func:`row_reset_of`.
        mask: bool ``[N]``.
        seeds: one for each row, None where the row goes on with its generator.
        options: of the reset.

    Returns:
        what the environment's reset returned.

    Raises:
        EnvError: single rows cannot be reset.
    """
    env = sim.simulator
    seed = _seed_for(env, mask, seeds)
    if np.count_nonzero(mask) == len(mask):
        result: tuple[Any, dict[str, Any]] = env.reset(seed=seed, options=options)
        return result
    if reset is None:
        raise EnvError(
            f"{sim.name} cannot reset the rows {np.flatnonzero(mask).tolist()} alone: it has the autoreset mode "
            f"{sim.autoreset_mode.name} and knows no reset mask. Let it end these episodes itself (a time limit in the "
            "environment instead of StepCounter), use gymnasium.vector.SyncVectorEnv, or say how its rows are reset: "
            f"rl_envs.register_row_reset({type(env.unwrapped).__name__}, function)"
        )
    return reset(env, mask, seed, options)


def _seed_for(env: Any, mask: np.ndarray, seeds: list[int | None]) -> Any:
    """A seed in the form that the environment takes: one for each row, or one for all of them."""
    given = [seed for seed in seeds if seed is not None]
    if not given:
        return None
    if isinstance(env.unwrapped, (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv)):
        return seeds
    return given[0] % (2**31 - len(mask))  # others spread one seed, for simulators in C++, over their rows


def _reset_cart_poles(
    env: Any, mask: np.ndarray, seed: int | None, options: dict[str, Any] | None
) -> tuple[Any, dict[str, Any]]:
    """The CartPoleVectorEnv of gymnasium, whose rows are columns of ``state``."""
    if seed is not None:
        gymnasium.vector.VectorEnv.reset(env, seed=seed)
    env.state[:, mask] = env.np_random.uniform(low=env.low, high=env.high, size=(4, int(mask.sum())))
    env.steps[mask] = 0
    env.prev_done[mask] = False
    return env.state.T.astype(np.float32), {}


register_row_reset(CartPoleVectorEnv, _reset_cart_poles)
