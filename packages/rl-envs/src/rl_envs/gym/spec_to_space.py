"""``spec_to_space``: the gymnasium space of a spec, by the spec's type; the inverse of ``gym_to_spec``."""

from __future__ import annotations

from functools import singledispatch
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
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from rl_core.errors import SpecError
from rl_envs.gym.library import gymnasium

__all__ = ["spec_to_space"]

_TEXT = 4096  # characters of a text whose length no spec knows


@singledispatch
def spec_to_space(spec: TensorSpec) -> Any:
    """The gymnasium space whose values a spec describes.

    A choice is the same ``Discrete`` or ``MultiDiscrete`` in both encodings, with its offset; several of one kind
    (dimensions in front) are a ``MultiDiscrete``. A Composite is a ``Dict``, or a ``Tuple`` where its keys are "0",
    "1", ... Masks are left out: they belong to a state, spaces do not change.

    Args:
        spec: of one environment, without batch dimensions. Other types are added by ``spec_to_space.register``.

    Returns:
        a ``gymnasium.Space``, with a generator of its own.

    Raises:
        SpecError: no space holds such values.

    Example:
        >>> spec_to_space(Categorical(4, start=2))
        Discrete(4, start=2)
        >>> spec_to_space(Composite(n=OneHot(3), x=Bounded(low=-1, high=1, shape=(2,))))
        Dict('n': Discrete(3), 'x': Box(-1.0, 1.0, (2,), float32))
    """
    raise SpecError(
        f"no gymnasium space is known for {type(spec).__name__}; say which one: rl_envs.spec_to_space.register("
        f"{type(spec).__name__}, lambda spec: gymnasium.spaces...)"
    )


@spec_to_space.register
def _bounded(spec: Bounded) -> Any:
    dtype = numpy_dtype(spec)
    return gymnasium.spaces.Box(spec.low.cpu().numpy().copy(), spec.high.cpu().numpy().copy(), dtype=dtype)


@spec_to_space.register
def _unbounded(spec: Unbounded) -> Any:
    dtype = numpy_dtype(spec)
    if dtype == np.bool_:
        return _flags(spec)
    if np.issubdtype(dtype, np.floating):
        return gymnasium.spaces.Box(-np.inf, np.inf, tuple(spec.shape), dtype)
    limits = np.iinfo(dtype)
    return gymnasium.spaces.Box(limits.min, limits.max, tuple(spec.shape), dtype)


@spec_to_space.register
def _binary(spec: Binary) -> Any:
    """``MultiBinary`` is int8 and has dimensions; anything else is a Box of zeros and ones."""
    dtype = numpy_dtype(spec)
    if dtype == np.int8 and spec.ndim:
        return gymnasium.spaces.MultiBinary(tuple(spec.shape) if spec.ndim > 1 else spec.n)
    return _flags(spec)


def _flags(spec: TensorSpec) -> Any:
    dtype = numpy_dtype(spec)
    return gymnasium.spaces.Box(np.zeros(spec.shape, dtype), np.ones(spec.shape, dtype), dtype=dtype)


@spec_to_space.register
def _categorical(spec: Categorical) -> Any:
    return _choices(spec, tuple(spec.shape))


@spec_to_space.register
def _one_hot(spec: OneHot) -> Any:
    return _choices(spec, tuple(spec.shape[:-1]))


def _choices(spec: Categorical | OneHot, lead: tuple[int, ...]) -> Any:
    """One choice, or one for each place of the leading dimensions."""
    if spec.n < 1:
        raise SpecError(
            f"a gymnasium.spaces.Discrete needs its number of categories; {spec} leaves it open (n={spec.n})"
        )
    if not lead:
        return gymnasium.spaces.Discrete(spec.n, start=int(spec.start))
    return gymnasium.spaces.MultiDiscrete(np.full(lead, spec.n), start=np.full(lead, int(spec.start)))


@spec_to_space.register
def _multi_categorical(spec: MultiCategorical) -> Any:
    return _multi(spec, tuple(spec.shape))


@spec_to_space.register
def _multi_one_hot(spec: MultiOneHot) -> Any:
    return _multi(spec, (*spec.shape[:-1], *spec.nvec.shape))


def _multi(spec: MultiCategorical | MultiOneHot, shape: tuple[int, ...]) -> Any:
    nvec, start = (np.broadcast_to(part.cpu().numpy(), shape).copy() for part in (spec.nvec, spec.start))
    return gymnasium.spaces.MultiDiscrete(nvec, start=start)


@spec_to_space.register
def _non_tensor(spec: NonTensor) -> Any:
    """Texts; what other objects may be is not known from one example."""
    example = spec.example_data
    if not isinstance(example, str) or spec.ndim:
        raise SpecError(
            f"no gymnasium space is known for objects like {example!r} of shape {tuple(spec.shape)}; a single text "
            "becomes a gymnasium.spaces.Text"
        )
    characters = frozenset(map(chr, range(32, 127))) | frozenset(example)
    return gymnasium.spaces.Text(max(_TEXT, len(example)), min_length=0, charset=characters)


@spec_to_space.register
def _composite(spec: Composite) -> Any:
    parts = {str(name): spec_to_space(part) for name, part in spec.items()}
    if parts and list(parts) == [str(place) for place in range(len(parts))]:
        return gymnasium.spaces.Tuple(tuple(parts.values()))
    return gymnasium.spaces.Dict(parts)


def numpy_dtype(spec: TensorSpec) -> np.dtype[Any]:
    """The numpy dtype of a spec's values.

    Raises:
        SpecError: numpy has none (bfloat16).
    """
    assert spec.dtype is not None
    try:
        return torch.empty(0, dtype=spec.dtype).numpy().dtype
    except TypeError as error:
        raise SpecError(
            f"gymnasium spaces hold numpy values, and numpy has no {spec.dtype}; spec.to(torch.float32)"
        ) from error
