"""State dicts as JSON plus one block of raw tensor bytes: data only, never code.

Plain JSON values stand for themselves. Everything else is an object with one key that begins with ``$``::

    {"$tensor": {"dtype": "float32", "shape": [2, 3], "offset": 0}}     {"$array": {...}}     numpy, same fields
    {"$tuple": [...]}      {"$dict": [[key, value], ...]}  other than string keys      {"$float": "nan"}
    {"$tensordict": {"batch_size": [...], "items": {...}}}     {"$dtype": "float32"}     {"$device": "cpu"}
    {"$bytes": "<base64>"}
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_core.errors import CheckpointError

__all__ = ["TreeReader", "TreeWriter"]

_ALIGN = 64


class TreeWriter:
    """Encodes state dicts; tensors go to ``file`` as they are met.

    Args:
        file: takes the raw bytes; little-endian, row-major, each tensor aligned to 64 bytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def encode(self, value: Any, where: str) -> Any:
        """The JSON form of a state.

        Args:
            value: a tree of dicts, lists, tuples, tensors, arrays, numbers, strings and None.
            where: the tree's name, for errors.

        Raises:
            CheckpointError: a value that is no data, named by its place.
        """
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._tensor(value)}
        if isinstance(value, np.ndarray):
            return {"$array": self._array(value, where)}
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, (float, np.floating)):
            return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, np.bool_):
            return bool(value)
        return self._encode_container(value, where)

    def _encode_container(self, value: Any, where: str) -> Any:
        if isinstance(value, TensorDictBase):
            items = {name: value.get(name) for name in value.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
            return {"$tensordict": {"batch_size": list(value.batch_size), "items": self.encode(items, where)}}
        if isinstance(value, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.encode(item, f"{where}.{key}") for key, item in value.items()}
            return {"$dict": [[self.encode(k, where), self.encode(v, f"{where}.{k}")] for k, v in value.items()]}
        if isinstance(value, list):
            return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        raise CheckpointError(
            f"the state at {where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds "
            "tensors, arrays, numbers, strings, None, dicts, lists and tuples, never objects. "
            "Let the component's state_dict() return those"
        )

    def _tensor(self, value: torch.Tensor) -> dict[str, Any]:
        value = value.detach().cpu().contiguous()
        raw = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return self._entry(str(value.dtype).removeprefix("torch."), value.shape, raw)

    def _array(self, value: np.ndarray, where: str) -> dict[str, Any]:
        if value.dtype.kind not in "biufc":
            raise CheckpointError(f"the array at {where} has dtype {value.dtype}; a checkpoint holds arrays of numbers")
        value = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        return self._entry(value.dtype.name, value.shape, value.tobytes())

    def _entry(self, dtype: str, shape: Any, raw: bytes) -> dict[str, Any]:
        self._file.write(b"\0" * (-self._file.tell() % _ALIGN))
        entry = {"dtype": dtype, "shape": list(shape), "offset": self._file.tell()}
        self._file.write(raw)
        return entry


class TreeReader:
    """Decodes what :class:`TreeWriter` wrote.

    Args:
        blob: the raw bytes of all tensors.
        map_location: the device for tensors; CPU where None.
    """

    def __init__(self, blob: bytes | memoryview, map_location: Any = None) -> None:
        self._blob = memoryview(blob)
        self._device = map_location
        self._decoders: dict[str, Callable[[Any], Any]] = {
            "$tensor": self._tensor,
            "$array": self._array,
            "$tuple": lambda items: tuple(self.decode(item) for item in items),
            "$dict": lambda pairs: {_hashable(self.decode(k)): self.decode(v) for k, v in pairs},
            "$float": float,
            "$tensordict": lambda td: TensorDict(self.decode(td["items"]), batch_size=td["batch_size"]),
            "$dtype": _dtype,
            "$device": torch.device,
            "$bytes": base64.b64decode,
        }

    def decode(self, value: Any) -> Any:
        """The state of a JSON form."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            kind, content = next(iter(value.items()))
            if kind.startswith("$"):
                if kind not in self._decoders:
                    raise CheckpointError(f"unknown kind of value {kind!r}: a newer version of rl-trainers wrote this")
                return self._decoders[kind](content)
        return {key: self.decode(item) for key, item in value.items()}

    def _tensor(self, entry: dict[str, Any]) -> torch.Tensor:
        dtype = _dtype(entry["dtype"])
        raw = self._raw(entry, dtype.itemsize)
        flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        tensor = flat.reshape(entry["shape"])
        return tensor if self._device is None else tensor.to(self._device)

    def _array(self, entry: dict[str, Any]) -> np.ndarray:
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        array = np.frombuffer(self._raw(entry, dtype.itemsize), dtype=dtype).reshape(entry["shape"])
        native: np.ndarray = array.astype(dtype.newbyteorder("="), copy=False)
        return native

    def _raw(self, entry: dict[str, Any], itemsize: int) -> bytearray:
        start, size = entry["offset"], math.prod(entry["shape"]) * itemsize
        raw = bytearray(self._blob[start : start + size])  # a writable copy: the state may be changed in place
        if len(raw) != size:
            raise CheckpointError(f"a tensor of {size} bytes at {start} ends beyond the file: it is cut off")
        return raw


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"this torch ({torch.__version__}) has no dtype {name!r}")
    return dtype


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
