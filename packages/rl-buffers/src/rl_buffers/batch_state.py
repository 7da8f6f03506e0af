"""Batches as plain data: what a sample holds, taken apart into tensors, numbers and names, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDictBase, is_tensor_collection
from torch import Tensor

from rl_buffers.rows import RowSchema, flatten, object_rows, stack_objects
from rl_core.errors import CheckpointError

__all__ = ["batch_from_state", "batch_state"]


def batch_state(batch: Any) -> dict[str, Any]:
    """A batch as dicts, lists, tensors and JSON values.

    Args:
        batch: a TensorDict, dense or lazily stacked, a tensor, or dicts, lists and tuples of these; anything else is
            kept as it is, so that only what takes it in can say whether it may.

    >>> batch_state([torch.zeros(1), "a"])["value"][1]
    {'kind': 'value', 'value': 'a'}
    """
    if isinstance(batch, LazyStackedTensorDict):
        parts = [batch_state(part) for part in batch.unbind(batch.stack_dim)]
        return {"kind": "lazy", "dim": batch.stack_dim, "value": parts}
    if isinstance(batch, TensorDictBase):
        return _tensordict_state(batch)
    if isinstance(batch, Mapping):
        return {"kind": "dict", "value": [[key, batch_state(value)] for key, value in batch.items()]}
    if type(batch) in (list, tuple):
        return {"kind": type(batch).__name__, "value": [batch_state(value) for value in batch]}
    if is_tensor_collection(batch):
        raise CheckpointError(
            f"a batch is a {type(batch).__name__}, which is a class of its own: use TensorDicts where batches are saved"
        )
    return {"kind": "value", "value": batch}


def _tensordict_state(batch: TensorDictBase) -> dict[str, Any]:
    flat = flatten(batch)
    return {
        "kind": "tensordict",
        "schema": RowSchema.of(flat, 0).state_dict(),
        "tensors": list(flat.tensors.values()),
        "objects": [object_rows(value, 0)[0] for value in flat.objects.values()],
        "device": None if batch.device is None else str(batch.device),
    }


def batch_from_state(state: Mapping[str, Any]) -> Any:
    """The batch that :func:`batch_state` took apart; its tensors are copies.

    >>> batch_from_state(batch_state({"x": (torch.ones(2), 3)}))
    {'x': (tensor([1., 1.]), 3)}
    """
    kind, value = state["kind"], state.get("value")
    if kind == "lazy":
        return LazyStackedTensorDict(*(batch_from_state(part) for part in value or ()), stack_dim=state["dim"])
    if kind == "tensordict":
        return _tensordict_from(state)
    if kind == "dict":
        return {key: batch_from_state(part) for key, part in value or ()}
    if kind in ("list", "tuple"):
        parts = [batch_from_state(part) for part in value or ()]
        return parts if kind == "list" else tuple(parts)
    return value.clone() if isinstance(value, Tensor) else value


def _tensordict_from(state: Mapping[str, Any]) -> Any:
    schema = RowSchema.from_state_dict(state["schema"])
    device = None if state["device"] is None else torch.device(state["device"])
    tensors = [
        leaf.to(device) if device is not None and leaf.device != device else leaf.clone() for leaf in state["tensors"]
    ]
    objects = [
        stack_objects(list(value), extra) if extra else NonTensorData(value)
        for value, extra in zip(state["objects"], schema.object_dims, strict=True)
    ]
    return schema.build(tensors, objects, (), device)
