"""Conversions of ``Discrete`` and ``MultiDiscrete``: choices as one-hot vectors or as their native numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_core import Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from rl_core.errors import SpecError
from rl_envs.gym.conversions import Decoder, Encoder, SpaceConversion, register_gym_spec_conversion
from rl_envs.gym.library import gymnasium

__all__: list[str] = []

_FEW = 64  # up to here a search in a list is faster than argmax


@register_gym_spec_conversion(gymnasium.spaces.Discrete)
class _Discrete(SpaceConversion):
    """One choice; ``start`` is the native number of the first category."""

    def spec(self, space: Any, categorical: bool) -> TensorSpec:
        kind = Categorical if categorical else OneHot
        return kind(int(space.n), dtype=torch.int64, start=int(space.start))

    def encoder(self, space: Any, spec: TensorSpec) -> Encoder | None:
        if not isinstance(spec, OneHot):
            return None
        numbers = int(space.start) + np.arange(int(space.n))
        return lambda value: np.asarray(value)[..., None] == numbers

    def decoder(self, space: Any, spec: TensorSpec, batched: bool) -> Decoder:
        start, dtype = int(space.start), space.dtype
        if isinstance(spec, OneHot):
            if batched:
                return lambda row: (row.argmax(-1) + start).astype(dtype)
            return _hot(int(space.n), start)
        return (lambda row: row.astype(dtype)) if batched else int


def _hot(n: int, start: int) -> Decoder:
    """The position of the 1 in a single row."""

    def search(row: np.ndarray) -> int:
        entries = row.tolist()
        if entries.count(1) != 1:  # an index that numpy spread over the row has none or many
            raise SpecError(
                f"a one-hot action has one 1 among {n} entries, found {entries}; an index is accepted where the "
                "environment was made with categorical_action_encoding=True"
            )
        return entries.index(1) + start

    return search if n <= _FEW else (lambda row: int(row.argmax()) + start)


@register_gym_spec_conversion(gymnasium.spaces.MultiDiscrete)
class _MultiDiscrete(SpaceConversion):
    """Several choices, in an array of one or more dimensions."""

    def spec(self, space: Any, categorical: bool) -> TensorSpec:
        nvec, start = torch.as_tensor(space.nvec, dtype=torch.int64), torch.as_tensor(space.start, dtype=torch.int64)
        if categorical:
            return MultiCategorical(nvec, shape=nvec.shape, dtype=torch.int64, start=start)
        return MultiOneHot(nvec, dtype=torch.int64, start=start)

    def encoder(self, space: Any, spec: TensorSpec) -> Encoder | None:
        if not isinstance(spec, MultiOneHot):
            return None
        owner, within, flat = _blocks(space.nvec)
        ndim, start = space.nvec.ndim, np.asarray(space.start).reshape(-1)

        def write(value: Any) -> Any:
            array = np.asarray(value)
            index = array.reshape(*array.shape[: array.ndim - ndim], flat) - start
            return index[..., owner] == within

        return write

    def decoder(self, space: Any, spec: TensorSpec, batched: bool) -> Decoder:
        start, dtype, shape = np.asarray(space.start), space.dtype, space.nvec.shape
        if isinstance(spec, MultiOneHot):
            _, within, _count = _blocks(space.nvec)
            begins = np.flatnonzero(within == 0)

            def read(row: np.ndarray) -> Any:
                index = np.add.reduceat(row * within, begins, axis=-1)
                return (index.reshape(*index.shape[:-1], *shape) + start).astype(dtype)

            return read
        return lambda row: row.astype(dtype)


def _blocks(nvec: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """For every entry of the one-hot vectors: which choice it belongs to and which category; and how many choices."""
    counts = nvec.reshape(-1)
    owner = np.repeat(np.arange(len(counts)), counts)
    within = np.concatenate([np.arange(count) for count in counts])
    return owner, within, len(counts)
