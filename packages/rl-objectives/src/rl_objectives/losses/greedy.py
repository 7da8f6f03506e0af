"""What a loss knows of a network that takes greedy actions: its action space, its mask, and its values' source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict.nn import TensorDictSequential
from torch import nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_core.specs import Categorical, MultiOneHot, OneHot, TensorSpec

__all__ = ["ActionSpace", "GreedyActor", "GreedyChoice", "ValuePart", "action_space_of"]

_NAMES = {"one_hot": "one_hot", "one-hot": "one_hot", "categorical": "categorical"}
_NAMES |= {"mult_one_hot": "mult_one_hot", "mult-one-hot": "mult_one_hot"}


@runtime_checkable
class GreedyChoice(Protocol):
    """A module that turns action values into the best action, such as ``QValueModule``."""

    action_space: str
    """ "one_hot", "categorical" or "mult_one_hot"."""
    var_nums: Sequence[int]
    """Lengths of the groups of "mult_one_hot"; else empty."""
    in_keys: Any
    """The values; a second key, if any, is the action mask."""


@runtime_checkable
class GreedyActor(Protocol):
    """A policy that can give its action values without choosing, such as ``QValueActor``."""

    def get_value_operator(self) -> nn.Module:
        """The keyed module that reads observations and writes action values, and no more."""
        ...


@dataclass(frozen=True)
class ActionSpace:
    """How actions are stored, and how they are masked.

    Args:
        name: "one_hot", "categorical" or "mult_one_hot"; None where nobody says it: the first batch will tell.
        groups: lengths of the one-hot groups of "mult_one_hot".
        mask: the key under which the network reads its action mask, or None.
    """

    name: str | None
    groups: tuple[int, ...] | None = None
    mask: Key | None = None


def action_space_of(action_space: str | TensorSpec | None, network: nn.Module, owner: str) -> ActionSpace:
    """The action space that a user named, or else that of the network.

    Args:
        action_space: a name, a OneHot, Categorical or MultiOneHot spec of the action, or None.
        network: it is searched for a :class:`GreedyChoice`.
        owner: the loss, for the error.

    Raises:
        SpecError: there is no such space, it is not the network's, or the groups of "mult_one_hot" are unknown.
    """
    choices = [module for module in network.modules() if isinstance(module, GreedyChoice)]
    choice = choices[-1] if choices else None
    mask = as_key(choice.in_keys[1]) if choice is not None and len(choice.in_keys) > 1 else None
    own = None if choice is None else _NAMES.get(choice.action_space)
    groups = tuple(int(length) for length in choice.var_nums or ()) if choice is not None else ()
    name = own if action_space is None else _named(action_space, owner)
    if isinstance(action_space, MultiOneHot):
        groups = tuple(int(length) for length in torch.as_tensor(action_space.nvec).flatten())
    if own is not None and name != own:
        raise SpecError(f"{owner}: action_space is {name!r}, but the network chooses {own!r} actions")
    if name != "mult_one_hot":
        return ActionSpace(name, None, mask)
    if not groups:
        raise SpecError(
            f"{owner}: the lengths of the groups of 'mult_one_hot' actions are unknown; give action_space a MultiOneHot"
            " spec"
        )
    return ActionSpace(name, groups, mask)


class ValuePart:
    """Finds the part of a network that gives the action values, so that losses skip the choice behind it.

    Parts that are replaced later are followed.

    Args:
        network: the online network; its target is of the same kind.
    """

    def __init__(self, network: nn.Module) -> None:
        self._is_actor = isinstance(network, GreedyActor)
        self._is_sequence = type(network) is TensorDictSequential
        self._known: list[tuple[list[nn.Module], nn.Module]] = []

    def of(self, network: Any) -> nn.Module:
        """The part, or the network itself where it is no chain that ends in a choice."""
        if self._is_actor:
            return network.get_value_operator()
        return self._of_sequence(network) if self._is_sequence else network

    def _of_sequence(self, network: TensorDictSequential) -> nn.Module:
        if network._forward_hooks or network._forward_pre_hooks:
            return network
        modules = list(network.module)
        for seen, part in self._known:
            if seen == modules:
                return part
        part = network
        if isinstance(modules[-1], GreedyChoice) and len(modules) > 1:
            part = modules[0] if len(modules) == 2 else TensorDictSequential(*modules[:-1])
        self._known = [*self._known[-1:], (modules, part)]  # the online network's and its target's
        return part


def _named(action_space: str | TensorSpec, owner: str) -> str:
    for kind, name in ((OneHot, "one_hot"), (MultiOneHot, "mult_one_hot"), (Categorical, "categorical")):
        if isinstance(action_space, kind):
            return name
    if isinstance(action_space, str) and action_space in _NAMES:
        return _NAMES[action_space]
    raise SpecError(
        f"{owner}: action_space is 'one_hot', 'categorical', 'mult_one_hot', or a OneHot, Categorical or MultiOneHot "
        f"spec; got {action_space!r}"
    )
