"""A dm_env environment on rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core import Columns, OneHot, RowProgram
from rl_core.errors import EnvError

if TYPE_CHECKING:
    from rl_envs.dm_control.env import DMControlWrapper
    from rl_envs.dm_control.specs import Leaf

__all__ = ["dm_program"]


def dm_program(sim: DMControlWrapper, columns: Columns) -> RowProgram:
    """Bind an environment to its columns."""
    env, frames, running = sim._env, range(sim.frame_skip), sim.running
    read = _reader(sim.action_leaves, columns)
    write, check = _writer(sim, columns)
    reward, terminated, truncated = (columns[name][..., 0] for name in ("reward", "terminated", "truncated"))
    fresh = True

    def step(t: int) -> None:
        nonlocal fresh
        if not running[0]:
            raise _not_running(sim)
        action, gain = read(t), 0.0
        for _ in frames:
            now = env.step(action)
            gain += now.reward
            if now.last():
                break
        if fresh:
            check(now.observation)
            fresh = False
        write(t + 1, now.observation)
        reward[t] = gain
        last = now.last()
        terminated[t + 1] = last and now.discount == 0
        truncated[t + 1] = last and now.discount != 0
        running[0] = not last

    def reset(t: int, mask: np.ndarray | None) -> None:
        if mask is not None and not mask.any():
            return
        sim.before_reset()
        first = env.reset()
        check(first.observation)
        write(t, first.observation)
        running[0] = True

    return RowProgram(step, reset)


def _reader(leaves: Sequence[Leaf], columns: Columns) -> Callable[[int], Any]:
    """``read(t)`` gives the native action of row t, in memory of its own and of the declared dtype."""
    parts = [(leaf.path, columns[leaf.key], leaf.native.dtype, isinstance(leaf.spec, OneHot)) for leaf in leaves]
    if len(parts) == 1 and not parts[0][0]:
        _, array, dtype, hot = parts[0]
        if hot:
            return lambda t: array[t].argmax(-1).astype(dtype)
        return lambda t: array[t].astype(dtype)

    def read(t: int) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for path, array, dtype, hot in parts:
            node = tree
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = (array[t].argmax(-1) if hot else array[t]).astype(dtype)
        return tree

    return read


def _writer(sim: DMControlWrapper, columns: Columns) -> tuple[Callable[[int, Any], None], Callable[[Any], None]]:
    """What writes an observation into row t, and what compares one with its specs."""
    parts = [(leaf, leaf.path, columns[leaf.key], _encoder(leaf)) for leaf in sim.observation_leaves]
    pixels, render = columns["pixels"] if sim.from_pixels else None, sim.render

    def write(t: int, observation: Any) -> None:
        for _, path, array, encode in parts:
            value = observation
            for name in path:
                value = value[name]
            array[t] = value if encode is None else encode(value)
        if pixels is not None:
            pixels[t] = render()

    def check(observation: Any) -> None:
        for leaf, path, array, encode in parts:
            value = observation
            for name in path:
                if name not in value:
                    raise EnvError(f"{sim.name} gave an observation without {leaf.key!r}, which its spec declares")
                value = value[name]
            found = np.shape(value if encode is None else encode(value))
            if array.dtype != object and found != array.shape[1:]:
                raise EnvError(
                    f"{sim.name} gave {leaf.key!r} of shape {np.shape(value)}; its spec says {leaf.native.shape}. Fix "
                    "its observation_spec or its observations"
                )

    return write, check


def _encoder(leaf: Leaf) -> Callable[[Any], Any] | None:
    if not isinstance(leaf.spec, OneHot):
        return None
    numbers = np.arange(leaf.spec.n)
    return lambda value: np.asarray(value)[..., None] == numbers


def _not_running(sim: DMControlWrapper) -> EnvError:
    if not sim.was_reset:
        return EnvError(f"{sim.name} was stepped before its first reset; start with td = env.reset()")
    return EnvError(
        f"{sim.name} was stepped after its episode ended; reset first: td = env.maybe_reset(td), or let "
        "env.step_and_maybe_reset(td) and env.rollout(n, break_when_any_done=False) do it"
    )
