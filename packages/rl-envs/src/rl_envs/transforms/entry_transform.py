"""Base of transforms that map every entry on its own, values and specs alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rl_core import Bounded, Composite, TensorSpec, Transform, Unbounded
from rl_core.errors import SpecError
from rl_core.keys import Key

__all__ = ["EntryTransform", "dtype_of", "map_leaves", "ranged"]


class EntryTransform(Transform):
    """A subclass defines ``_apply_transform``, ``_map_spec`` and, for actions, ``_inv_apply_transform``."""

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        """The spec of an entry after the map."""
        raise NotImplementedError(f"{type(self).__name__} must define _map_spec")

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The specs of the out keys."""
        return map_leaves(observation_spec, self.in_keys, self.out_keys, self._map_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The specs of the out keys, where a reward is among the in keys."""
        return map_leaves(reward_spec, self.in_keys, self.out_keys, self._map_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """What the policy writes: the environment's entry as the map shows it."""
        return map_leaves(action_spec, self.in_keys_inv, self.out_keys_inv, self._map_spec, move=True)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The same for states that the environment reads."""
        return map_leaves(state_spec, self.in_keys_inv, self.out_keys_inv, self._map_spec, move=True)


def map_leaves(
    spec: Composite,
    keys: Sequence[Key],
    out_keys: Sequence[Key],
    change: Callable[[TensorSpec], TensorSpec],
    *,
    move: bool = False,
) -> Composite:
    """Set each out key to the changed leaf of its in key, in place; ``move`` takes the in key away."""
    for key, out_key in zip(keys, out_keys, strict=True):
        leaf = spec.get(key, None)
        if leaf is None:
            continue
        if move and key != out_key:
            spec.pop(key)
        spec.set(out_key, change(leaf))
    return spec


def dtype_of(leaf: TensorSpec) -> torch.dtype:
    """The dtype of a leaf that holds tensors."""
    if leaf.dtype is None:
        raise SpecError(f"{leaf} holds no tensors; name other entries with in_keys=[...]")
    return leaf.dtype


def ranged(leaf: TensorSpec, like: TensorSpec | None = None, **changes: object) -> TensorSpec:
    """A box with one range for all entries, that of the leaf, in another shape or dtype; Unbounded without a range.

    Args:
        leaf: whose range it is.
        like: whose dtype and device are taken; default: the leaf.
        **changes: ``shape``, ``dtype``, ``low`` or ``high``.
    """
    like = leaf if like is None else like
    kept = {"shape": leaf.shape, "dtype": like.dtype, "device": like.device, **changes}
    low, high = kept.pop("low", None), kept.pop("high", None)
    if low is None and isinstance(leaf, Bounded):
        low, high = leaf.low.min().item(), leaf.high.max().item()
    if low is None:
        return Unbounded(**kept)  # type: ignore[arg-type]
    return Bounded(low=low, high=high, **kept)  # type: ignore[arg-type]
