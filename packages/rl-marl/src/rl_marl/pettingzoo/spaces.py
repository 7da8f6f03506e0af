"""Spaces of one agent as the specs of a group, and its values as rows of the group's arrays and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_core import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from rl_core.errors import SpecError
from rl_marl.pettingzoo.library import gymnasium

__all__ = ["ActionCodec", "Leaf", "action_codec", "leaf_spec", "observation_leaves"]

Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """One array of an agent's observation: where it lies, and its space."""

    path: Path
    space: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one agent's value."""
        return tuple(self.space.shape)

    @property
    def dtype(self) -> np.dtype:
        """The dtype it is written with."""
        return np.dtype(np.int64) if isinstance(self.space, gymnasium.spaces.Discrete) else np.dtype(self.space.dtype)

    def read(self, value: Any) -> Any:
        """The leaf's part of an observation."""
        for name in self.path:
            value = value[int(name)] if isinstance(value, tuple) else value[name]
        return value


def observation_leaves(space: Any, path: Path = ()) -> list[Leaf]:
    """The arrays of an observation space, those of a Dict or Tuple at their own places.

    Raises:
        SpecError: a space that has no array form.
    """
    kinds = gymnasium.spaces
    if isinstance(space, kinds.Dict):
        return [leaf for name, part in space.spaces.items() for leaf in observation_leaves(part, (*path, name))]
    if isinstance(space, kinds.Tuple):
        return [leaf for i, part in enumerate(space.spaces) for leaf in observation_leaves(part, (*path, str(i)))]
    if isinstance(space, (kinds.Box, kinds.Discrete, kinds.MultiDiscrete, kinds.MultiBinary)):
        return [Leaf(path, space)]
    raise SpecError(
        f"a space {type(space).__name__} among the observations has no array form; Box, Discrete, MultiDiscrete, "
        "MultiBinary, Dict and Tuple have"
    )


def leaf_spec(spaces: Sequence[Any], zero_is_legal: bool) -> TensorSpec:
    """The spec ``[n, *shape]`` of one leaf of a group, from the space of each agent.

    Args:
        spaces: the leaf's space of every agent; of one kind, shape and dtype, bounds may differ.
        zero_is_legal: widen the bounds so that they hold the zeros of agents that are away.
    """
    kinds, first, count = gymnasium.spaces, spaces[0], len(spaces)
    if isinstance(first, kinds.Discrete):
        start, end = int(first.start), int(first.start + first.n)
        if zero_is_legal:
            start, end = min(start, 0), max(end, 1)
        return Categorical(end - start, shape=(count,), start=start)
    if isinstance(first, kinds.MultiBinary) or np.dtype(first.dtype) == np.bool_:
        return Binary(shape=(count, *first.shape), dtype=_torch_dtype(first.dtype))
    low, high = (np.stack([_bounds(space)[side] for space in spaces]) for side in (0, 1))
    if zero_is_legal:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    dtype = _torch_dtype(first.dtype)
    if dtype.is_floating_point and np.isneginf(low).all() and np.isposinf(high).all():
        return Unbounded(shape=(count, *first.shape), dtype=dtype)
    return Bounded(torch.as_tensor(low), torch.as_tensor(high), shape=(count, *first.shape), dtype=dtype)


def _bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return space.low, space.high


def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.zeros((), dtype=dtype)).dtype


@dataclass(frozen=True)
class ActionCodec:
    """How the actions of a group are written.

    Attributes:
        spec: of the group's actions, ``[n, ...]``.
        decode: one agent's row of the group's action array as the simulator wants it.
        choices: K where the action is one choice among K, which a mask can restrict; else None.
    """

    spec: TensorSpec
    decode: Callable[[np.ndarray], Any]
    choices: int | None


def action_codec(spaces: Sequence[Any], categorical: bool) -> ActionCodec:
    """The codec of a group's actions, from the action space of each agent.

    Args:
        spaces: of one kind and shape; the bounds of a Box may differ.
        categorical: choices as numbers; else as one-hot vectors.

    Raises:
        SpecError: the space is none of Discrete, MultiDiscrete, MultiBinary, Box.
    """
    kinds, first, count = gymnasium.spaces, spaces[0], len(spaces)
    if isinstance(first, kinds.Discrete):
        n, start = int(first.n), int(first.start)
        if categorical:
            return ActionCodec(Categorical(n, shape=(count,), start=start), int, n)
        return ActionCodec(OneHot(n, shape=(count, n), start=start), lambda row: int(row.argmax()) + start, n)
    if isinstance(first, kinds.MultiDiscrete):
        return _several_choices(first, count, categorical)
    if isinstance(first, kinds.MultiBinary):
        return ActionCodec(leaf_spec(spaces, False), lambda row: row.astype(first.dtype), None)
    if isinstance(first, kinds.Box):
        return ActionCodec(leaf_spec(spaces, False), lambda row: row.astype(first.dtype), None)
    raise SpecError(
        f"an action space {type(first).__name__} cannot be written as an array; Discrete, MultiDiscrete, MultiBinary "
        "and Box can"
    )


def _several_choices(space: Any, count: int, categorical: bool) -> ActionCodec:
    nvec, start = torch.as_tensor(space.nvec), torch.as_tensor(space.start)
    if categorical:
        spec: TensorSpec = MultiCategorical(nvec, shape=(count, *nvec.shape), start=start)
        return ActionCodec(spec, lambda row: row.astype(space.dtype), None)
    flat = space.nvec.reshape(-1)
    begins = np.concatenate([[0], np.cumsum(flat)[:-1]])
    within = np.concatenate([np.arange(k) for k in flat])

    def decode(row: np.ndarray) -> np.ndarray:
        index = np.add.reduceat(row * within, begins)
        return (index.reshape(space.nvec.shape) + space.start).astype(space.dtype)

    return ActionCodec(MultiOneHot(nvec, shape=(count, int(flat.sum())), start=start), decode, None)


def nested(leaves: dict[Path, TensorSpec], shape: tuple[int, ...]) -> Composite:
    """A Composite of one shape at every level."""
    tree: dict[str, Any] = {}
    for path, spec in leaves.items():
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = spec
    return _composite(tree, shape)


def _composite(tree: dict[str, Any], shape: tuple[int, ...]) -> Composite:
    return Composite(
        {name: _composite(part, shape) if isinstance(part, dict) else part for name, part in tree.items()}, shape=shape
    )
