"""Policy and value together: a critic on common features and the action, and two networks that share nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from rl_core.errors import PolicyError
from rl_modules.policies.actor_value import ActorValueOperator
from rl_modules.policies.safe_module import has_keys
from rl_modules.policies.sequential import SafeSequential
from rl_modules.policies.value_operator import ValueOperator

__all__ = ["ActorCriticOperator", "ActorCriticWrapper"]


class ActorCriticOperator(ActorValueOperator):
    """A common network, a policy head, and a critic that reads the common features and the action.

    Args:
        common_operator: module that writes the features ("hidden" from "observation" for a plain network).
        policy_operator: module that writes the action.
        value_operator: module that writes the value of that action; a plain network reads the features and "action".

    >>> from rl_modules import Actor, SafeModule
    >>> common = SafeModule(nn.Linear(3, 8), in_keys=["observation"], out_keys=["hidden"])
    >>> actor = Actor(nn.Linear(8, 2), in_keys=["hidden"])
    >>> both = ActorCriticOperator(common, actor, nn.Bilinear(8, 2, 1))
    >>> both.get_critic_operator().out_keys, both.get_value_head().in_keys
    (['hidden', 'action', 'state_action_value'], ['hidden', 'action'])
    """

    def __init__(
        self,
        common_operator: Callable[..., Any],
        policy_operator: Callable[..., Any],
        value_operator: Callable[..., Any],
    ) -> None:
        if not has_keys(value_operator):
            common: Any = common_operator
            features = common.out_keys if has_keys(common) else ["hidden"]
            value_operator = ValueOperator(value_operator, in_keys=[*features, "action"])
        if "state_value" in value_operator.out_keys:  # type: ignore[attr-defined]
            raise PolicyError(
                "the critic of an ActorCriticOperator values an action and writes 'state_action_value'; this one "
                "writes 'state_value'. Give it 'action' among its in_keys, or use ActorValueOperator"
            )
        super().__init__(common_operator, policy_operator, value_operator)

    def get_critic_operator(self) -> SafeSequential:
        """Features, action and the value of that action, from an observation: all three parts."""
        return SafeSequential(*self.module)

    def get_value_operator(self) -> SafeSequential:
        """The same: the value of an action needs the policy for the action."""
        return self.get_critic_operator()

    def get_policy_head(self) -> nn.Module:
        """The policy alone, reading the features."""
        return self.module[1]

    def get_value_head(self) -> nn.Module:
        """The critic alone, reading features and action."""
        return self.module[2]


class ActorCriticWrapper(SafeSequential):
    """A policy and a value network that share nothing, in one module.

    Args:
        policy_operator: module that writes the action.
        value_operator: module that writes the value; a plain network reads "observation".

    >>> from rl_modules import Actor
    >>> both = ActorCriticWrapper(Actor(nn.Linear(3, 2)), ValueOperator(nn.Linear(3, 1)))
    >>> both.out_keys, both.get_value_operator().out_keys
    (['action', 'state_value'], ['state_value'])
    """

    def __init__(self, policy_operator: Callable[..., Any], value_operator: Callable[..., Any]) -> None:
        if not has_keys(policy_operator):
            raise TypeError(
                f"ActorCriticWrapper needs a policy with in_keys and out_keys; got {type(policy_operator).__name__}. "
                f"Wrap it in ProbabilisticActor or Actor."
            )
        if not has_keys(value_operator):
            value_operator = ValueOperator(value_operator)
        super().__init__(policy_operator, value_operator)

    def get_policy_operator(self) -> nn.Module:
        """The policy."""
        return self.module[0]

    def get_value_operator(self) -> nn.Module:
        """The value network."""
        return self.module[1]

    get_policy_head = get_policy_operator
    get_value_head = get_value_operator
