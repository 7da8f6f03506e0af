"""The statistics of an environment's transforms: read, handed to another environment, frozen within a block."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError
from rl_core.transforms.base import Transform
from rl_core.transforms.compose import Compose
from rl_core.transforms.transformed_env import TransformedEnv

__all__ = ["TransformState", "frozen", "read_statistics", "take_statistics", "transforms_of"]


@runtime_checkable
class _Freezable(Protocol):
    """A transform that says whether its statistics are to stay as they are."""

    @property
    def frozen(self) -> bool: ...


@dataclass(frozen=True)
class TransformState:
    """What a transform has in its ``state_dict``.

    Attributes:
        name: its class, its keys and its place among those of the same class and keys.
        state: a copy.
    """

    name: tuple[Any, ...]
    state: dict[str, Any]


def _layers(env: EnvBase) -> tuple[list[TransformedEnv], EnvBase]:
    """The environments with transforms, the innermost first, and the one underneath."""
    layers: list[TransformedEnv] = []
    while isinstance(env, TransformedEnv):
        layers.insert(0, env)
        env = env.base
    return layers, env


def transforms_of(env: EnvBase) -> list[Transform]:
    """Every transform around an environment, the innermost first."""

    def parts(transform: Transform) -> list[Transform]:
        if isinstance(transform, Compose):
            return [part for inner in transform for part in parts(inner)]
        return [transform]

    return [part for layer in _layers(env)[0] for part in parts(layer.transform)]


def _named(env: EnvBase) -> Iterator[tuple[tuple[Any, ...], Transform]]:
    seen: dict[str, int] = {}
    for part in transforms_of(env):
        cls = type(part)
        name = f"{cls.__module__}.{cls.__qualname__}{part.in_keys}{part.out_keys}{part.in_keys_inv}{part.out_keys_inv}"
        seen[name] = place = seen.get(name, -1) + 1
        yield (name, place), part


def read_statistics(env: EnvBase) -> list[TransformState]:
    """A copy of what the transforms of an environment have in their state dicts."""
    found = ((name, part.state_dict()) for name, part in _named(env))
    return [
        TransformState(name, {key: _copied(value) for key, value in state.items()}) for name, state in found if state
    ]


def _copied(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def take_statistics(env: EnvBase, states: list[TransformState]) -> None:
    """Hand statistics to the transforms of the same class and keys.

    Transforms that say that they are ``frozen`` keep what they have, and so do those that have the same values already,
    as where both environments share them.

    Raises:
        CollectorError: there is a state, and no transform for any of it.
    """
    own = dict(_named(env))
    fitting = [state for state in states if state.name in own]
    if states and not fitting:
        raise CollectorError(
            f"the training environment has statistics in {', '.join(str(state.name[0]) for state in states)}; the "
            f"evaluation's transforms are {', '.join(str(name[0]) for name in own) or 'none'}. Give it transforms of "
            "the same class and keys"
        )
    for state in fitting:
        part = own[state.name]
        keeps = isinstance(part, _Freezable) and part.frozen
        if not keeps and not _same(part.state_dict(), state.state):
            part.load_state_dict(state.state)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.shape == b.shape and torch.equal(a.cpu(), b.cpu())
        return type(a) is type(b) and bool(a == b)

    return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)


@contextmanager
def frozen(env: EnvBase) -> Iterator[None]:
    """A block within which an environment's running statistics stand still; afterwards all parts are as before."""
    layers, base = _layers(env)
    modes = [(layer, layer.training) for layer in layers]
    parts = [(module, module.training) for layer in layers for module in layer.transform.modules()]
    base_mode = base.training
    env.eval()
    try:
        yield
    finally:
        base.train(base_mode)
        for layer, mode in modes:
            layer.training = mode
        for module, mode in parts:
            module.training = mode
