"""Gymnasium spaces as specs: nested ``Dict`` and ``Tuple`` by recursion, every other type by its conversion.

Equal counts never mean a batch: a space says what one environment reads or writes, the number of environments is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rl_core import Composite, NonTensor, TensorSpec
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key
from rl_envs.gym import choices as choices  # registers its conversions
from rl_envs.gym.conversions import Decoder, Encoder, conversion_of
from rl_envs.gym.library import gymnasium

__all__ = ["Leaf", "batched_spec", "composite", "gym_to_spec", "leaves_of", "observation_leaves"]

_RESERVED = ("action", "reward", "done", "terminated", "truncated", "next")


@dataclass(frozen=True)
class Leaf:
    """One leaf of a (nested) space.

    Attributes:
        key: its key in the TensorDict.
        path: how to reach it in the native value: names of Dicts, positions of Tuples.
        space: its gymnasium space.
        spec: its spec, without batch dimensions.
    """

    key: Key
    path: tuple[Any, ...]
    space: Any
    spec: TensorSpec

    def encoder(self) -> Encoder | None:
        """Native value to row, or None where numpy assigns it as it is."""
        return conversion_of(self.space).encoder(self.space, self.spec)

    def decoder(self, batched: bool) -> Decoder:
        """Row to native value."""
        return conversion_of(self.space).decoder(self.space, self.spec, batched)


def leaves_of(space: Any, key: Sequence[str], categorical: bool, path: tuple[Any, ...] = ()) -> list[Leaf]:
    """The leaves of a space under a key; Tuples name theirs "0", "1", ...

    Args:
        space: a gymnasium space.
        key: names above the space; empty for a Dict whose keys stand at the root.
        categorical: write choices as numbers, not one-hot.
        path: how the space itself is reached in the native value.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        parts: list[tuple[str, Any, Any]] = [(str(name), name, part) for name, part in space.spaces.items()]
    elif isinstance(space, gymnasium.spaces.Tuple):
        parts = [(str(place), place, part) for place, part in enumerate(space.spaces)]
    else:
        return [Leaf(as_key(tuple(key)), path, space, conversion_of(space).spec(space, categorical))]
    return [leaf for name, step, part in parts for leaf in leaves_of(part, (*key, name), categorical, (*path, step))]


def observation_leaves(space: Any, categorical: bool) -> list[Leaf]:
    """The leaves of an observation space: a Dict's keys at the root, anything else under "observation".

    Raises:
        EnvError: a key of the Dict has a meaning of its own at the root.
    """
    if not isinstance(space, gymnasium.spaces.Dict):
        return leaves_of(space, ("observation",), categorical)
    taken = [name for name in space.spaces if str(name) in _RESERVED]
    if taken:
        raise EnvError(
            f"the observation space has the key {taken[0]!r}, which names something else in a TensorDict "
            f"({', '.join(_RESERVED)} are reserved); rename it with a gymnasium.wrappers.TransformObservation"
        )
    return leaves_of(space, (), categorical)


def composite(leaves: Sequence[Leaf], batch: torch.Size) -> Composite:
    """The specs of leaves with batch dimensions in front."""
    spec = Composite(shape=batch)
    for leaf in leaves:
        spec.set(leaf.key, batched_spec(leaf.spec, batch))
    return spec


def batched_spec(spec: TensorSpec, batch: torch.Size) -> TensorSpec:
    """The spec of a batch of environments from that of one."""
    if isinstance(spec, NonTensor):
        return spec.replace(shape=batch, batched=len(batch) > 0)
    return spec.expand(*batch, *spec.shape) if len(batch) else spec


def gym_to_spec(space: Any, *, categorical_action_encoding: bool = False) -> TensorSpec:
    """The spec of a gymnasium space: a leaf, or a Composite for ``Dict`` and ``Tuple``.

    Box keeps its dtype (Unbounded without bounds); Discrete is OneHot int64 or Categorical, MultiDiscrete MultiOneHot
    or MultiCategorical, MultiBinary Binary int8; Text, Sequence, Graph and OneOf are NonTensor; a Tuple's keys are
    "0", "1", ...

    Args:
        space: the space of one environment.
        categorical_action_encoding: write choices as numbers instead of one-hot vectors.

    Raises:
        SpecError: the type of a space is not registered (:func:`register_gym_spec_conversion`).

    Example:
        >>> import gymnasium
        >>> gym_to_spec(gymnasium.spaces.Discrete(3, start=2)).to_numpy(torch.tensor([0, 0, 1])).item()
        4
    """
    if not isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return conversion_of(space).spec(space, categorical_action_encoding)
    return composite(leaves_of(space, (), categorical_action_encoding), torch.Size([]))
