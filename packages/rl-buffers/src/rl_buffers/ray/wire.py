"""What travels between a Ray actor and its clients: tensors as arrays, which Ray hands over in shared memory."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from rl_buffers.sent import SentTensor, received, sent

__all__ = ["packed", "unpacked"]


class _SentRows(tuple[Any, ...]):
    """A TensorDict on its way: its entries, batch size, dimension names and device."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return _SentRows, (tuple(self),)


def packed(value: Any) -> Any:
    """`value` with its tensors and TensorDicts made ready to travel; only the bytes of a view travel, not its base."""
    if isinstance(value, Tensor):
        return sent(value)
    if type(value) is TensorDict:
        entries = {name: packed(entry) for name, entry in value.items()}
        device = None if value.device is None else str(value.device)
        return _SentRows((entries, tuple(value.batch_size), device))
    if isinstance(value, dict):
        return {key: packed(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(packed(entry) for entry in value)
    if isinstance(value, TensorDictBase) or is_tensor_collection(value):
        return value.clone()  # without the memory of what it is a view of
    return value


def unpacked(value: Any) -> Any:
    """What was packed; its tensors are copies that may be written to."""
    if isinstance(value, SentTensor):
        return received(value)
    if isinstance(value, _SentRows):
        entries, batch_size, device = value
        return TensorDict({name: unpacked(entry) for name, entry in entries.items()}, batch_size, device=device)
    if isinstance(value, dict):
        return {key: unpacked(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(unpacked(entry) for entry in value)
    return value
