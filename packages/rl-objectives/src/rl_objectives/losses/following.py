"""Policies and critics with a memory at next observations, each in the state that it reaches there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import quoted
from rl_core.losses.sequences import LivedSequence
from rl_core.policy_state import StateCarrier

__all__ = ["FollowingDistribution", "check_action_apart", "check_states_apart", "with_following_action"]


class FollowingDistribution:
    """The part of a distribution over laid out steps that belongs to next observations.

    Args:
        distribution: over ``[*B, T + E]`` laid out steps.
        sequence: the layout.
    """

    def __init__(self, distribution: Any, sequence: LivedSequence) -> None:
        self._distribution, self._sequence = distribution, sequence
        self.has_rsample: bool = distribution.has_rsample

    @property
    def probs(self) -> Any:
        """Of discrete actions: their probabilities ``[*B, T, n]``."""
        probs = getattr(self._distribution, "probs", None)
        return self._sequence.split(probs)[1] if isinstance(probs, Tensor) else None

    def rsample_and_log_prob(self, sample_shape: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Draws ``[*S, *B, T, A]``, reparametrised where the distribution allows it, and log-probabilities."""
        own, shape = self._distribution, torch.Size(sample_shape)
        joint = getattr(own, "rsample_and_log_prob", None)
        if joint is not None:
            action, log_prob = joint(shape)
        else:
            action = own.rsample(shape) if self.has_rsample else own.sample(shape)
            log_prob = own.log_prob(action)
        return self._sequence.split(action, len(shape))[1], self._sequence.split(log_prob, len(shape))[1]


def with_following_action(batch: TensorDictBase, key: Key, action: Tensor) -> TensorDictBase:
    """A shallow copy of a batch ``[*B, T]`` in which the given actions are those of the next observations.

    Where the following row is the next observation's, it gets the action as well.

    Args:
        batch: left alone.
        key: of the action.
        action: ``[*B, T, A]``, at the next observations.
    """
    time = batch.ndim - 1
    held = batch.copy()
    first = action.narrow(time, 0, 1)  # any action: the values of stored actions are not asked for
    held.set(key, torch.cat([first, action.narrow(time, 0, action.shape[time] - 1)], time))
    held.set(join("next", key), action)
    return held


def check_states_apart(actor: nn.Module, critics: Sequence[nn.Module], owner: str) -> None:
    """Raise LossError where an actor and a critic keep states of their own under one key.

    The batch holds the states of the policy that acted; a critic would take them for its own.
    """
    states = {key: part for part in _carriers(actor) for key in part.carried_state().specs}
    for critic in critics:
        for part in _carriers(critic):
            for key in part.carried_state().specs:
                if key in states and states[key] is not part:
                    raise LossError(
                        f"{owner}: the actor and a critic are two networks with a memory under one key, {quoted(key)}: "
                        "the critic would start from the actor's stored states. Give one of them keys of its own: "
                        f"{type(part).__name__}(..., in_keys=[...], out_keys=[...])."
                    )


def check_action_apart(critic: nn.Module, action: Key, owner: str) -> None:
    """Raise LossError where an action enters a critic's memory.

    The values of other actions than the stored ones are asked for along a sequence: those actions were not taken, and
    must not be remembered at later steps.
    """
    if _remembers(critic, {action}):
        raise LossError(
            f"{owner}: {quoted(action)} enters the memory of a critic. Values of actions that were never taken are "
            "asked for, which later steps would remember. Let the memory read observations (and previous actions), and "
            "join the action behind it: TensorDictSequential(LSTMModule(in_key='observation', out_key='features'), "
            "ValueOperator(head, in_keys=['features', 'action']))."
        )


def _remembers(network: nn.Module, given: set[Key]) -> bool:
    """Whether any of the given entries reaches a module with a memory; adds to ``given`` what is made of them."""
    read = [as_key(key) for key in getattr(network, "in_keys", [])]
    members = network._modules.get("module")
    if isinstance(members, nn.ModuleList) and all(hasattr(member, "in_keys") for member in members):
        return any([_remembers(member, given) for member in members])
    reached = any(key in given for key in read)
    if reached:
        given.update(as_key(key) for key in getattr(network, "out_keys", []))
    return reached and bool(_carriers(network))


def _carriers(network: nn.Module) -> list[StateCarrier]:
    return [part for part in network.modules() if isinstance(part, StateCarrier)]
