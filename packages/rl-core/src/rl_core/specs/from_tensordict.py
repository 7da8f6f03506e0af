"""make_composite_from_td: the spec that a TensorDict's shapes and dtypes suggest."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDictBase

from rl_core.specs.base import TensorSpec
from rl_core.specs.composite import Composite
from rl_core.specs.non_tensor import NonTensor
from rl_core.specs.stacking import stack_specs
from rl_core.specs.unbounded import Unbounded

__all__ = ["make_composite_from_td"]


def make_composite_from_td(
    data: TensorDictBase, *, unsqueeze_null_shapes: bool = True, dynamic_shape: bool = False
) -> Composite:
    """A Composite of Unbounded and NonTensor entries that admits the TensorDict.

    Args:
        data: an example.
        unsqueeze_null_shapes: give entries without feature dimensions a last one of size 1, as rewards and end flags
            have.
        dynamic_shape: make the feature dimensions dynamic (-1).

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict(observation=torch.zeros(4, 3), reward=torch.zeros(4), batch_size=[4])
        >>> make_composite_from_td(td)["reward"].shape
        torch.Size([4, 1])
    """
    if isinstance(data, LazyStackedTensorDict):
        members = [
            make_composite_from_td(td, unsqueeze_null_shapes=unsqueeze_null_shapes, dynamic_shape=dynamic_shape)
            for td in data.tensordicts
        ]
        stacked = stack_specs(members, data.stack_dim)
        assert isinstance(stacked, Composite)
        return stacked
    entries: dict[str, TensorSpec] = {}
    for key in data.keys():  # noqa: SIM118
        entries[key] = _entry(data.get(key), data.batch_size, unsqueeze_null_shapes, dynamic_shape)
    return Composite(entries, shape=data.batch_size, device=data.device)


def _entry(value: Any, batch: torch.Size, unsqueeze: bool, dynamic: bool) -> TensorSpec:
    if isinstance(value, (NonTensorData, NonTensorStack)):
        example = value.data if isinstance(value, NonTensorData) else _first(value.tolist())
        batched = isinstance(value, NonTensorStack)
        return NonTensor(value.batch_size, device=value.device, example_data=example, batched=batched)
    if isinstance(value, TensorDictBase):
        return make_composite_from_td(value, unsqueeze_null_shapes=unsqueeze, dynamic_shape=dynamic)
    feature = list(value.shape[len(batch) :])
    if dynamic:
        feature = [-1] * len(feature)
    if not feature and unsqueeze:
        feature = [1]
    return Unbounded((*batch, *feature), device=value.device, dtype=value.dtype)


def _first(nested: Any) -> Any:
    while isinstance(nested, list) and nested:
        nested = nested[0]
    return nested
