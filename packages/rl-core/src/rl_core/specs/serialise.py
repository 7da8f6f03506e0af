"""Specs as JSON-able dictionaries, for config files and workers: ``spec_to_dict`` and ``spec_from_dict``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import TensorSpec
from rl_core.specs.binary import Binary
from rl_core.specs.bounded import Bounded
from rl_core.specs.categorical import Categorical
from rl_core.specs.choice import Choice
from rl_core.specs.composite import Composite
from rl_core.specs.multi_categorical import MultiCategorical
from rl_core.specs.multi_one_hot import MultiOneHot
from rl_core.specs.non_tensor import NonTensor
from rl_core.specs.one_hot import OneHot
from rl_core.specs.stacked import Stacked
from rl_core.specs.stacked_composite import StackedComposite
from rl_core.specs.unbounded import Unbounded

__all__ = ["spec_from_dict", "spec_to_dict"]

FORMAT = 1
_KINDS: dict[str, type[TensorSpec]] = {
    kind.__name__: kind
    for kind in (
        Binary,
        Bounded,
        Categorical,
        Choice,
        Composite,
        MultiCategorical,
        MultiOneHot,
        NonTensor,
        OneHot,
        Stacked,
        StackedComposite,
        Unbounded,
    )
}


def spec_to_dict(spec: TensorSpec) -> dict[str, Any]:
    """A spec as numbers, strings, lists and dictionaries.

    Example:
        >>> spec = Composite(action=Bounded(-1, 1, shape=(2,)))
        >>> spec_from_dict(spec_to_dict(spec)) == spec
        True
    """
    return {"format": FORMAT, **_written(spec)}


def spec_from_dict(data: Mapping[str, Any]) -> TensorSpec:
    """The spec that :func:`spec_to_dict` wrote."""
    if data.get("format") != FORMAT:
        raise SpecError(f"A spec of format {FORMAT} was expected, found format {data.get('format')!r}.")
    spec = _read(data)
    assert isinstance(spec, TensorSpec)
    return spec


def _written(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        if type(value) is not _KINDS.get(type(value).__name__):
            raise SpecError(f"{type(value).__name__} is not one of the kinds that can be written: {sorted(_KINDS)}.")
        config = {name: _written(entry) for name, entry in value._config().items() if entry is not None}
        return {"kind": type(value).__name__, "batch_ndim": value.batch_ndim, "config": config}
    if isinstance(value, Tensor):
        numbers = [_number(number) for number in value.flatten().tolist()]
        return {"tensor": numbers, "shape": list(value.shape), "dtype": _dtype_name(value.dtype)}
    if isinstance(value, torch.dtype):
        return {"dtype": _dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Mapping):
        return {"entries": {key: _written(entry) for key, entry in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_written(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise SpecError(f"A spec holds a {type(value).__name__}, which cannot be written as JSON: {value!r}.")


def _number(number: Any) -> Any:
    return str(number) if isinstance(number, float) and not math.isfinite(number) else number


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _read(data: Any) -> Any:
    if isinstance(data, list):
        return [_read(entry) for entry in data]
    if not isinstance(data, Mapping):
        return data
    for mark, reader in _READERS.items():
        if mark in data:
            return reader(data)
    raise SpecError(f"Not a part of a spec: {dict(data)!r}.")


def _read_spec(data: Mapping[str, Any]) -> TensorSpec:
    kind = _KINDS.get(data["kind"])
    if kind is None:
        raise SpecError(f"Unknown kind of spec {data['kind']!r}; known are {sorted(_KINDS)}.")
    spec = kind._made({name: _read(entry) for name, entry in data["config"].items()})
    return spec.replace(batch_ndim=data["batch_ndim"]) if spec.batch_ndim != data["batch_ndim"] else spec


def _read_tensor(data: Mapping[str, Any]) -> Tensor:
    numbers = [float(n) if isinstance(n, str) else n for n in data["tensor"]]
    return torch.tensor(numbers, dtype=getattr(torch, data["dtype"])).reshape(data["shape"])


_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "kind": _read_spec,
    "tensor": _read_tensor,
    "dtype": lambda data: getattr(torch, data["dtype"]),
    "device": lambda data: torch.device(data["device"]),
    "entries": lambda data: {key: _read(entry) for key, entry in data["entries"].items()},
}
