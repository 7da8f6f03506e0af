"""Implicit Q-learning for a finite number of actions, whose values one call gives all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.specs import TensorSpec
from rl_objectives.functional.q_learning import taken_value
from rl_objectives.losses.greedy import action_space_of
from rl_objectives.losses.iql import IQLLoss

__all__ = ["DiscreteIQLLoss"]


class DiscreteIQLLoss(IQLLoss):
    r"""Implicit Q-learning with critics that read observations only and write the values of all n actions, [*B, n].

    Losses, logs and further arguments are those of :class:`IQLLoss`; ``Q(s, a)`` is the entry of the stored action.

    Args:
        actor_network: a stochastic policy over the actions as they are stored (one-hot, or indices).
        qvalue_network: a module that reads observations and writes "state_action_value" [*B, n]; or a list of
            different ones.
        value_network: see :class:`IQLLoss`.
        action_space: how actions are stored: "one_hot", "categorical", "mult_one_hot" or the action's spec; None: as
            their shape tells.
        **options: of :class:`IQLLoss`.

    Raises:
        SpecError: an option is not admitted.

    Kostrikov et al., 2021, Offline Reinforcement Learning with Implicit Q-Learning, eq. 5, 6 and 7, arXiv 2110.06169.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: nn.Module,
        *,
        action_space: str | TensorSpec | None = None,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, value_network, **options)
        self.action_space = action_space_of(action_space, self.network(self.critic_name), type(self).__name__).name

    def taken_values(self, batch: TensorDictBase, action: Tensor, *, target: bool = False) -> Tensor:
        values = self.critic_values(batch, None, target=target)
        space = self.action_space or ("one_hot" if action.shape == values.shape[1:] else "categorical")
        return taken_value(values, action.expand(values.shape[0], *action.shape), space)
