"""How each type of gymnasium space is written: its spec, and its values in both directions, by registered type.

A conversion is found by the space's class (or the nearest base class). ``Dict`` and ``Tuple`` are containers and have
none: their leaves do (see :mod:`rl_envs.gym.spaces`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np
import torch

from rl_core import Binary, Bounded, NonTensor, TensorSpec, Unbounded
from rl_core.errors import SpecError
from rl_envs.gym.library import gymnasium

__all__ = ["SpaceConversion", "conversion_of", "register_gym_spec_conversion"]

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]
Registered = TypeVar("Registered")


class SpaceConversion:
    """One type of space: its spec, and how native values become rows and rows native values.

    The base class is right for spaces whose values are arrays of the spec's shape. Encoders and batched decoders take
    values with leading batch dimensions as well.
    """

    def spec(self, space: Any, categorical: bool) -> TensorSpec:
        """The spec of one value, without batch dimensions.

        Args:
            space: the gymnasium space.
            categorical: write choices as numbers, not one-hot.
        """
        raise NotImplementedError(f"{type(self).__name__} must define spec(space, categorical) -> TensorSpec")

    def encoder(self, space: Any, spec: TensorSpec) -> Encoder | None:
        """What turns a native value into one that numpy can assign to a row; None where it is assigned as it is."""
        return None

    def decoder(self, space: Any, spec: TensorSpec, batched: bool) -> Decoder:
        """What turns an action row into the native action, in memory of its own.

        Args:
            space: the gymnasium space.
            spec: its spec, from :meth:`spec`.
            batched: the row holds the actions of a whole vector environment.
        """
        dtype = space.dtype
        return lambda row: np.array(row, dtype=dtype)


_CONVERSIONS: dict[type, SpaceConversion] = {}


@overload
def register_gym_spec_conversion(space_type: type) -> Callable[[Registered], Registered]: ...
@overload
def register_gym_spec_conversion(space_type: type, conversion: Any) -> SpaceConversion: ...


def register_gym_spec_conversion(space_type: type, conversion: Any = None) -> Any:
    """Say how a type of space is converted; the last registration of a type counts.

    Args:
        space_type: a class of spaces; subclasses that have no conversion of their own are included.
        conversion: a :class:`SpaceConversion` (instance or class), or a function ``(space, categorical) -> spec`` for
            spaces whose values are arrays of the spec's shape. Left out: decorates such a class or function.

    Example:
        >>> import gymnasium
        >>> class Angle(gymnasium.spaces.Box): pass
        >>> @register_gym_spec_conversion(Angle)
        ... def angle(space, categorical):
        ...     return Bounded(low=-3.1416, high=3.1416, shape=space.shape, dtype=torch.float32)
        >>> conversion_of(Angle(-4, 4, (2,))).spec(Angle(-4, 4, (2,)), False).shape
        torch.Size([2])
    """

    def register(given: Any) -> Any:
        if isinstance(given, SpaceConversion):
            made = given
        elif isinstance(given, type) and issubclass(given, SpaceConversion):
            made = given()
        elif callable(given):
            made = _ByFunction(given)
        else:
            raise TypeError(
                f"a conversion is a SpaceConversion or a function (space, categorical) -> spec, got {given!r}"
            )
        _CONVERSIONS[space_type] = made
        return given

    if conversion is None:
        return register
    register(conversion)
    return _CONVERSIONS[space_type]


def conversion_of(space: Any) -> SpaceConversion:
    """The conversion registered for a space's class.

    Raises:
        SpecError: there is none.
    """
    for cls in type(space).__mro__:
        if cls in _CONVERSIONS:
            return _CONVERSIONS[cls]
    raise SpecError(
        f"no conversion is registered for the space {space} ({type(space).__module__}.{type(space).__qualname__}); "
        f"register one: rl_envs.register_gym_spec_conversion({type(space).__name__}, conversion)"
    )


class _ByFunction(SpaceConversion):
    """A conversion of which only the spec is special."""

    def __init__(self, function: Callable[[Any, bool], TensorSpec]) -> None:
        self.function = function

    def spec(self, space: Any, categorical: bool) -> TensorSpec:
        return self.function(space, categorical)


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of a numpy dtype."""
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype


@register_gym_spec_conversion(gymnasium.spaces.Box)
class _Box(SpaceConversion):
    """Numbers of a dtype between bounds; Unbounded where no element has a bound."""

    def spec(self, space: Any, categorical: bool) -> TensorSpec:
        dtype = torch_dtype(space.dtype)
        if dtype == torch.bool:
            return Binary(shape=space.shape, dtype=dtype)
        if not (space.bounded_below.any() or space.bounded_above.any()):
            return Unbounded(shape=space.shape, dtype=dtype)
        return Bounded(low=torch.tensor(space.low), high=torch.tensor(space.high), shape=space.shape, dtype=dtype)


@register_gym_spec_conversion(gymnasium.spaces.MultiBinary)
class _MultiBinary(SpaceConversion):
    """Bits, int8."""

    def spec(self, space: Any, categorical: bool) -> TensorSpec:
        return Binary(shape=space.shape, dtype=torch.int8)


class _Objects(SpaceConversion):
    """Values without a fixed shape, kept as Python objects."""

    def spec(self, space: Any, categorical: bool) -> TensorSpec:
        return NonTensor(example_data=self.example(space))

    def example(self, space: Any) -> Any:
        """A member of the space; the space's own generator is left alone."""
        drawn = copy.deepcopy(space)
        drawn.seed(0)
        return drawn.sample()

    def encoder(self, space: Any, spec: TensorSpec) -> Encoder | None:
        return copy.deepcopy

    def decoder(self, space: Any, spec: TensorSpec, batched: bool) -> Decoder:
        if batched:
            return lambda row: tuple(copy.deepcopy(value) for value in row)
        return copy.deepcopy


@register_gym_spec_conversion(gymnasium.spaces.Text)
class _Text(_Objects):
    """Strings, which need no copy."""

    def example(self, space: Any) -> Any:
        return space.character_list[0] * space.min_length if space.min_length else ""

    def encoder(self, space: Any, spec: TensorSpec) -> Encoder | None:
        return None

    def decoder(self, space: Any, spec: TensorSpec, batched: bool) -> Decoder:
        return tuple if batched else (lambda row: row)


for _type in (gymnasium.spaces.Sequence, gymnasium.spaces.Graph, gymnasium.spaces.OneOf):
    register_gym_spec_conversion(_type, _Objects())
