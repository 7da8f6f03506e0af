"""Soft actor-critic in its first version, with a network for state values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key, as_key, join
from rl_objectives.functional.distance import distance_loss
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.functional.soft_value import soft_value
from rl_objectives.losses.off_policy import OffPolicyKeys, deterministic
from rl_objectives.losses.sac import SACLoss
from rl_objectives.losses.temperature import sample_with_log_prob
from rl_objectives.shapes import check_same_shape

__all__ = ["SACv1Keys", "SACv1Loss"]


@dataclass(frozen=True)
class SACv1Keys(OffPolicyKeys):
    """The entries of :class:`SACv1Loss`."""

    value: Key = "state_value"
    """[*B, 1]: what the value network writes."""


class SACv1Loss(SACLoss):
    r"""Soft actor-critic whose targets come from a network of state values.

    .. math::
        L_V = d(V(s), \; \min_i Q_i(s, \tilde a) - \alpha \log \pi(\tilde a|s)), \qquad
        L_Q = \sum_i d(Q_i(s, a), \; r + \gamma (1 - m) V'(s'))

    with the actor's and the temperature's losses of :class:`SACLoss`, and a~ drawn from the policy. Returns
    ``loss_value`` beside what that one returns.

    Args:
        actor_network: see :class:`SACLoss`.
        qvalue_network: likewise.
        value_network: a module that reads observations and writes "state_value".
        delay_value: take V' from a target network, moved by SoftUpdate.
        delay_qvalue: take the values that V is to learn from target critics. The paper takes the critics themselves.
        **options: of :class:`SACLoss`.

    Haarnoja et al., 2018, Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a Stochastic
    Actor, eq. 5 to 13, arXiv 1801.01290; with the learnt temperature of arXiv 1812.05905.
    """

    default_keys: ClassVar[Any] = SACv1Keys()

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: nn.Module,
        *,
        delay_value: bool = True,
        delay_qvalue: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, delay_qvalue=delay_qvalue, **options)
        self.add_network("value_network", value_network, delayed=delay_value)

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self._modules["value_network"].in_keys]  # type: ignore[union-attr]
        return list(dict.fromkeys([*super().default_in_keys(), *inputs, *(join("next", key) for key in inputs)]))

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "loss_qvalue", "loss_alpha", "loss_value", "alpha", "entropy", "td_error"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        losses = super().compute(batch)
        losses["loss_value"] = self._value(batch, self.valid_rows(batch))
        return losses

    def value_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the state values of a batch; there are no logs."""
        self.keep_alpha_in_bounds()
        with deterministic(), self.along_time(batch):
            return self._value(batch, self.valid_rows(batch)), {}

    def _value(self, batch: TensorDictBase, mask: Tensor | None) -> Tensor:
        with torch.no_grad():
            action, log_prob = sample_with_log_prob(self.distribution(batch), type(self).__name__)
            best = smallest_value(self.critic_values(batch, action, target=True))
            target = soft_value(best, self.as_value(log_prob, best), self.alpha)
        value = self._state_value(batch, None)
        check_same_shape(type(self).__name__, (self.path("value"), value), (self.path("state_action_value"), target))
        return self.weighted(batch, distance_loss(value, target, self.loss_function).squeeze(-1), mask)

    def next_state_value(self, batch: TensorDictBase) -> Tensor:
        return self._state_value(batch, "next")

    def _state_value(self, batch: TensorDictBase, under: Key | None) -> Tensor:
        network = self.network("value_network", target=under is not None)
        return self.output_of(network, self.path("value"), batch, under)
