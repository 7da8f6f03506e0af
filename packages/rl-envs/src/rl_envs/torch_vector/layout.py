"""Where a batched torch simulator's tensors go: leaves of its spaces or specs, and its native actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Composite, MultiOneHot, OneHot, TensorSpec
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path

__all__ = ["Leaf", "action_leaves", "action_reader", "composite", "observation_leaves", "observed"]


@dataclass(frozen=True)
class Leaf:
    """One tensor of an observation or an action.

    Attributes:
        key: its key in the TensorDict.
        path: names and positions that lead to it in the simulator's value.
        spec: of one environment.
    """

    key: Key
    path: tuple[Any, ...]
    spec: TensorSpec


def observation_leaves(env: Any, spec: TensorSpec | None) -> list[Leaf]:
    """The leaves of the given spec, or of the simulator's ``single_observation_space``."""
    if spec is not None:
        return _of_spec(spec, ("observation",), ())
    from rl_envs.gym.spaces import observation_leaves as of_space

    space = _space(env, "single_observation_space", "observation_spec")
    return [Leaf(leaf.key, leaf.path, leaf.spec) for leaf in of_space(space, categorical=True)]


def action_leaves(env: Any, spec: TensorSpec | None, categorical: bool) -> list[Leaf]:
    """The leaves of the given spec, or of the simulator's ``single_action_space``."""
    if spec is not None:
        return _of_spec(spec, ("action",), ("action",))
    from rl_envs.gym.spaces import leaves_of

    space = _space(env, "single_action_space", "action_spec")
    return [Leaf(leaf.key, leaf.path, leaf.spec) for leaf in leaves_of(space, ("action",), categorical)]


def _space(env: Any, name: str, argument: str) -> Any:
    space = getattr(env, name, None)
    if space is None:
        raise EnvError(
            f"{type(env).__name__} has no {name}; give TorchVectorEnv its {argument} (of one environment, without the "
            "batch)"
        )
    return space


def _of_spec(spec: TensorSpec, alone: tuple[str, ...], root: tuple[str, ...]) -> list[Leaf]:
    if not isinstance(spec, Composite):
        return [Leaf(as_key(alone), (), spec)]
    return [Leaf(as_key((*root, *as_path(key))), as_path(key), leaf) for key, leaf in spec.items(True, True)]


def composite(leaves: Sequence[Leaf], batch: torch.Size) -> Composite:
    """The specs of a batch of environments."""
    spec = Composite({}, shape=batch)
    for leaf in leaves:
        spec.set(leaf.key, leaf.spec.expand(*batch, *leaf.spec.shape))
    return spec


def observed(leaves: Sequence[Leaf], observation: Any, device: torch.device, name: str) -> dict[Key, Tensor]:
    """The tensors of an observation by key, in memory of their own: simulators write over theirs."""
    found: dict[Key, Tensor] = {}
    for leaf in leaves:
        value = observation
        try:
            for step in leaf.path:
                value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            raise EnvError(
                f"{name} gave an observation without {leaf.key!r} ({type(error).__name__}: {error}); its spec has it"
            ) from error
        if not isinstance(value, Tensor):
            raise EnvError(f"{name} gave {leaf.key!r} as {type(value).__name__}; TorchVectorEnv takes torch.Tensor")
        found[leaf.key] = value.to(device=device, dtype=leaf.spec.dtype, copy=True)
    return found


def action_reader(leaves: Sequence[Leaf], device: torch.device) -> Callable[[TensorDictBase], Any]:
    """``read(td)`` gives the native action: a tensor, or nested dicts (tuples where names are positions)."""

    def native(leaf: Leaf, td: TensorDictBase) -> Tensor:
        value: Tensor = td.get(leaf.key)
        if isinstance(leaf.spec, (OneHot, MultiOneHot)):
            value = leaf.spec.to_categorical(value)
        return value.detach().to(device)

    if len(leaves) == 1 and not leaves[0].path:
        return lambda td: native(leaves[0], td)

    def read(td: TensorDictBase) -> Any:
        tree: dict[Any, Any] = {}
        for leaf in leaves:
            node = tree
            for step in leaf.path[:-1]:
                node = node.setdefault(step, {})
            node[leaf.path[-1]] = native(leaf, td)
        return _tupled(tree)

    return read


def _tupled(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    parts = {name: _tupled(part) for name, part in node.items()}
    if parts and all(isinstance(name, int) for name in parts):
        return tuple(parts[place] for place in sorted(parts))
    return parts
