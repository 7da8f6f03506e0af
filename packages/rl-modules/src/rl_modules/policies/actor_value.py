"""Policy and value heads on one common network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from rl_modules.policies.probabilistic_module import SafeProbabilisticModule
from rl_modules.policies.probabilistic_sequential import SafeProbabilisticTensorDictSequential
from rl_modules.policies.safe_module import has_keys, named_module
from rl_modules.policies.sequential import SafeSequential
from rl_modules.policies.value_operator import ValueOperator

__all__ = ["ActorValueOperator"]


class ActorValueOperator(SafeSequential):
    """A common network, a policy head and a value head; the common part runs once for both.

    Args:
        common_operator: module that writes what both heads read ("hidden" from "observation" for a plain network).
        policy_operator: module that writes the action.
        value_operator: module that writes the value; a plain network reads the common outputs.

    >>> from rl_modules import Categorical, ProbabilisticActor, SafeModule
    >>> common = SafeModule(nn.Linear(3, 8), in_keys=["observation"], out_keys=["hidden"])
    >>> logits = SafeModule(nn.Linear(8, 2), in_keys=["hidden"], out_keys=["logits"])
    >>> policy = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical)
    >>> both = ActorValueOperator(common, policy, nn.Linear(8, 1))
    >>> both.get_policy_operator().out_keys, both.get_value_operator().out_keys
    (['hidden', 'logits', 'action'], ['hidden', 'state_value'])
    """

    def __init__(
        self,
        common_operator: Callable[..., Any],
        policy_operator: Callable[..., Any],
        value_operator: Callable[..., Any],
    ) -> None:
        common = named_module(common_operator, ["observation"], ["hidden"])
        if not has_keys(policy_operator):
            raise TypeError(
                f"ActorValueOperator needs a policy with in_keys and out_keys; got {type(policy_operator).__name__}. "
                f"Wrap it in ProbabilisticActor or Actor."
            )
        if not has_keys(value_operator):
            value_operator = ValueOperator(value_operator, in_keys=common.out_keys)
        super().__init__(common, policy_operator, value_operator)

    def get_policy_operator(self) -> SafeSequential:
        """The policy with the common network: a module from observations to actions."""
        return _chain(self.module[0], self.module[1])

    def get_value_operator(self) -> SafeSequential:
        """The value with the common network: a module from observations to values."""
        return SafeSequential(self.module[0], self.module[2])

    def get_policy_head(self) -> nn.Module:
        """The policy alone, reading the common outputs."""
        return self.module[1]

    def get_value_head(self) -> nn.Module:
        """The value alone, reading the common outputs."""
        return self.module[2]


def _chain(common: nn.Module, policy: nn.Module) -> SafeSequential:
    if isinstance(policy, (SafeProbabilisticTensorDictSequential, SafeProbabilisticModule)):
        return SafeProbabilisticTensorDictSequential(common, policy)
    return SafeSequential(common, policy)
