"""Greedy actions from action values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.errors import PolicyError
from rl_core.keys import Key, as_keys
from rl_core.specs import Categorical, Composite, MultiOneHot, OneHot, TensorSpec
from rl_modules.distributions.masked import name_row
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.projection import leaf_specs, spec_tree
from rl_modules.policies.safe_module import Keys, has_keys, named_module
from rl_modules.policies.sequential import SafeSequential

__all__ = ["QValueActor", "QValueModule", "masked_values", "named_space", "space_of", "value_operator"]

_SPACES = {"one_hot": "one_hot", "one-hot": "one_hot", "categorical": "categorical"}
_SPACES |= {"mult_one_hot": "mult_one_hot", "mult-one-hot": "mult_one_hot"}


class QValueModule(PolicyModule):
    """Takes the action of the highest value.

    Of equal values the first wins, so a one-hot action always has one 1.

    Args:
        action_space: "one_hot", "categorical" or "mult_one_hot"; read from the spec unless given.
        action_value_key: the values ``[*B, n]``, "action_value" unless given.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; none unless given.
        out_keys: action, action values and value of the chosen action ``[*B, 1]``; "action", "action_value" and
            "chosen_action_value" unless given.
        var_nums: lengths of the one-hot groups of "mult_one_hot"; read from the spec unless given.
        spec: spec of the action, a leaf or a Composite.
        safe: accepted for compatibility; the greedy action is always legal.

    Raises:
        ValueError: if the action space is neither given nor told by the spec.
    """

    def __init__(
        self,
        action_space: str | TensorSpec | None = None,
        action_value_key: Key | None = None,
        action_mask_key: Key | None = None,
        out_keys: Keys | None = None,
        var_nums: Sequence[int] | None = None,
        spec: TensorSpec | None = None,
        safe: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(action_space, TensorSpec):
            spec, action_space = action_space, None
        value_key = "action_value" if action_value_key is None else action_value_key
        keys = ["action", value_key, "chosen_action_value"] if out_keys is None else as_keys(out_keys)
        if len(keys) != 3:
            raise ValueError(f"QValueModule writes action, action values and chosen value; got out_keys={keys}.")
        self._set_keys([value_key] if action_mask_key is None else [value_key, action_mask_key], keys)
        self._specs = leaf_specs(spec, keys, self.__name__, safe=False)
        leaf = self._specs.get(self.out_keys[0])
        self.action_space = space_of(leaf) if action_space is None else named_space(action_space)
        self.var_nums = list(var_nums) if var_nums is not None else _group_sizes(leaf)
        if self.action_space == "mult_one_hot" and not self.var_nums:
            raise ValueError("QValueModule with mult_one_hot actions needs var_nums or a MultiOneHot spec.")
        self._dtype = torch.int64 if leaf is None or leaf.dtype is None else leaf.dtype

    @property
    def spec(self) -> Composite | None:
        """The spec of the action, as a Composite."""
        return spec_tree(self._specs)

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        values = inputs[0]
        ranked = values if len(inputs) == 1 else masked_values(values, inputs[1])
        if self.action_space == "mult_one_hot":
            picks = [group.argmax(-1) for group in ranked.split(self.var_nums, -1)]
            hot = torch.cat([F.one_hot(pick, size) for pick, size in zip(picks, self.var_nums, strict=True)], -1)
            return hot.to(self._dtype), values, (values * hot).sum(-1, keepdim=True)
        index = ranked.argmax(-1, keepdim=True)
        chosen = values.gather(-1, index)
        index = index.squeeze(-1)
        action = F.one_hot(index, values.shape[-1]) if self.action_space == "one_hot" else index
        return action.to(self._dtype), values, chosen


class QValueActor(SafeSequential):
    """A network that writes action values, followed by the greedy choice.

    Args:
        module: the network, plain or with keys.
        in_keys: its inputs, "observation" unless given; for a plain network.
        spec: spec of the action, a leaf or a Composite.
        safe: accepted for compatibility; the greedy action is always legal.
        action_space: "one_hot", "categorical" or "mult_one_hot"; read from the spec unless given.
        action_value_key: key of the values; the module's own out key where it has one.
        action_key: key of the action.
        chosen_action_value_key: key of the chosen value.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; none unless given.
        var_nums: lengths of the one-hot groups of "mult_one_hot".

    >>> from torch import nn
    >>> QValueActor(nn.Linear(3, 2), action_space="one_hot").out_keys
    ['action', 'action_value', 'chosen_action_value']
    """

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: Keys | None = None,
        *,
        spec: TensorSpec | None = None,
        safe: bool = False,
        action_space: str | TensorSpec | None = None,
        action_value_key: Key | None = None,
        action_key: Key = "action",
        chosen_action_value_key: Key = "chosen_action_value",
        action_mask_key: Key | None = None,
        var_nums: Sequence[int] | None = None,
    ) -> None:
        if action_value_key is None:
            written = module.out_keys if has_keys(module) else []  # type: ignore[attr-defined]
            action_value_key = written[0] if len(written) == 1 else "action_value"
        network = named_module(module, ["observation"] if in_keys is None else in_keys, [action_value_key])
        greedy = QValueModule(
            action_space,
            action_value_key,
            action_mask_key,
            [action_key, action_value_key, chosen_action_value_key],
            var_nums,
            spec,
        )
        super().__init__(network, greedy)

    def get_value_operator(self) -> nn.Module:
        """The network alone, without the greedy choice: what losses evaluate. Nothing is copied."""
        return value_operator(self)


def value_operator(actor: SafeSequential) -> nn.Module:
    """The first of an actor's two parts; the actor itself where a subclass or a hook adds to what it computes."""
    if not actor.takes_tensors or actor._forward_hooks or actor._forward_pre_hooks:
        return actor
    # Not actor.module[0], which costs 3 us: losses ask at every call.
    return actor._modules["module"]._modules["0"]  # type: ignore[union-attr, return-value]


def masked_values(values: Tensor, mask: Tensor) -> Tensor:
    """The values, -inf where an action is not allowed.

    Raises:
        PolicyError: a row allows no action; it is named.
    """
    blocked = ~mask.any(-1)
    if bool(blocked.any()):
        raise PolicyError(
            f"The action mask allows no action in {name_row(blocked)} of batch {list(blocked.shape)}. Every state "
            f"needs an allowed action."
        )
    return values.masked_fill(~mask, float("-inf"))


def named_space(name: str) -> str:
    """The action space of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in _SPACES:
        raise ValueError(f"QValueModule knows the action spaces {sorted(set(_SPACES.values()))}; got {name!r}.")
    return _SPACES[name]


def space_of(spec: TensorSpec | None) -> str:
    """The name of a spec's action space.

    Raises:
        ValueError: its actions have no greedy choice, or there is no spec.
    """
    if isinstance(spec, OneHot):
        return "one_hot"
    if isinstance(spec, MultiOneHot):
        return "mult_one_hot"
    if isinstance(spec, Categorical):
        return "categorical"
    found = "nothing" if spec is None else type(spec).__name__
    raise ValueError(
        f"QValueModule needs action_space= or a OneHot, MultiOneHot or Categorical spec; got {found}. "
        f"Values of continuous or binary actions have no greedy choice."
    )


def _group_sizes(spec: TensorSpec | None) -> list[int]:
    return [int(n) for n in torch.as_tensor(spec.nvec).flatten()] if isinstance(spec, MultiOneHot) else []
