"""The arrays that dm_env declares, as specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_core import Bounded, Categorical, Composite, NonTensor, OneHot, TensorSpec, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key
from rl_envs.dm_control.library import dm_env

__all__ = ["Leaf", "composite", "leaves_of"]

_RESERVED = ("action", "reward", "done", "terminated", "truncated", "next")


@dataclass(frozen=True)
class Leaf:
    """One array of a (nested) declaration.

    Attributes:
        key: its key in the TensorDict.
        path: names that lead to it in the native value.
        native: what dm_env declares.
        spec: its spec.
    """

    key: Key
    path: tuple[str, ...]
    native: Any
    spec: TensorSpec


def leaves_of(
    declared: Any, alone: str, categorical: bool, dtype: torch.dtype | None, root: tuple[str, ...] = ()
) -> list[Leaf]:
    """The leaves of what an environment declares.

    Args:
        declared: an array's declaration, or a (nested) mapping of them.
        alone: the key of a single array.
        categorical: write choices as numbers, not one-hot.
        dtype: of what is declared as floating point; None keeps it.
        root: the names above a mapping's.

    Raises:
        EnvError: an observation has a key that means something else.
    """
    if not isinstance(declared, Mapping):
        return [Leaf(alone, (), declared, spec_of(declared, categorical, dtype))]
    leaves: list[Leaf] = []

    def walk(node: Mapping[str, Any], path: tuple[str, ...]) -> None:
        for name, part in node.items():
            if isinstance(part, Mapping):
                walk(part, (*path, name))
            else:
                leaves.append(
                    Leaf(as_key((*root, *path, name)), (*path, name), part, spec_of(part, categorical, dtype))
                )

    walk(declared, ())
    taken = [leaf.key for leaf in leaves if not root and leaf.path[0] in _RESERVED]
    if taken:
        raise EnvError(
            f"the observation {taken[0]!r} has a name that means something else in a TensorDict "
            f"({', '.join(_RESERVED)} are reserved); rename it in the task's get_observation"
        )
    return leaves


def spec_of(declared: Any, categorical: bool, dtype: torch.dtype | None) -> TensorSpec:
    """The spec of one declared array."""
    if isinstance(declared, dm_env.specs.StringArray):
        return NonTensor(example_data="")
    if isinstance(declared, dm_env.specs.DiscreteArray):
        kind = Categorical if categorical else OneHot
        return kind(int(declared.num_values), dtype=torch.int64)
    kept = torch.from_numpy(np.empty(0, dtype=declared.dtype)).dtype
    if dtype is not None and kept.is_floating_point:
        kept = dtype
    if kept == torch.bool:
        return Categorical(2, shape=declared.shape, dtype=kept)
    if not isinstance(declared, dm_env.specs.BoundedArray):
        return Unbounded(shape=declared.shape, dtype=kept)
    low, high = (np.broadcast_to(bound, declared.shape) for bound in (declared.minimum, declared.maximum))
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return Unbounded(shape=declared.shape, dtype=kept)
    return Bounded(low=torch.tensor(low), high=torch.tensor(high), shape=declared.shape, dtype=kept)


def composite(leaves: list[Leaf]) -> Composite:
    """The specs of leaves, nested as their keys."""
    spec = Composite({}, shape=())
    for leaf in leaves:
        spec.set(leaf.key, leaf.spec)
    return spec
