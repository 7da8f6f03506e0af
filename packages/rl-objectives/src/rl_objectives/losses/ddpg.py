"""Deep deterministic policy gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key
from rl_core.losses.reduction import masked_mean, masked_rows
from rl_objectives.losses.off_policy import OffPolicyLoss, deterministic

__all__ = ["DDPGLoss"]


class DDPGLoss(OffPolicyLoss):
    r"""A deterministic actor that follows its critic's gradient.

    .. math:: L_\pi = -Q(s, \mu(s)), \qquad L_Q = d(Q(s, a), \; r + \gamma (1 - m) Q'(s', \mu'(s')))

    Returns ``loss_actor`` and ``loss_value`` (add them up) and the detached logs ``pred_value``, ``target_value``,
    ``pred_value_max``, ``target_value_max`` and ``td_error``.

    Args:
        actor_network: a module that reads observations and writes the action.
        value_network: a module that reads observations and the action and writes "state_action_value".
        loss_function: see :class:`OffPolicyLoss`.
        delay_actor: take the next action from a target actor, moved by SoftUpdate. The paper does.
        delay_value: evaluate it by a target critic.
        **options: of :class:`OffPolicyLoss`: gamma, separate_losses, reduction, use_prioritized_weights, priority_type.

    Raises:
        SpecError: an option is not admitted.

    Lillicrap et al., 2015, Continuous control with deep reinforcement learning, algorithm 1, arXiv 1509.02971.
    """

    critic_name: ClassVar[str] = "value_network"

    def __init__(
        self,
        actor_network: nn.Module,
        value_network: nn.Module,
        *,
        loss_function: str = "l2",
        delay_actor: bool = False,
        delay_value: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(loss_function=loss_function, **options)
        self.add_actor_and_critics(actor_network, value_network, 1, delay_actor=delay_actor, delay_critics=delay_value)

    def default_out_keys(self) -> list[Key]:
        logs = ["pred_value", "target_value", "pred_value_max", "target_value_max", "td_error"]
        return ["loss_actor", "loss_value", *logs]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask = self.valid_rows(batch)
        value, logs = self._value(batch, mask)
        return {"loss_actor": self._actor(batch, mask), "loss_value": value, **logs}

    def actor_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss of a batch; there are no logs."""
        with deterministic(), self.along_time(batch):
            return self._actor(batch, self.valid_rows(batch)), {}

    def value_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss of a batch, and logs; the priorities are written into the batch."""
        with deterministic(), self.along_time(batch):
            return self._value(batch, self.valid_rows(batch))

    def _actor(self, batch: TensorDictBase, mask: Tensor | None) -> Tensor:
        value = self.critic_values(batch, self.deterministic_action(batch), hold_out=True)[0]
        return self.weighted(batch, -value.squeeze(-1), mask)

    def _value(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            action = self.deterministic_action(batch, "next", target=True)
            target = self.td_target(batch, self.critic_values(batch, action, "next", target=True)[0])
        values = self.critic_values(batch, self.read(batch, "action"))
        rows, error = self.critic_distance(values, target)
        self.report(batch, error, mask)
        seen, wanted = masked_rows(values[0].detach(), mask), masked_rows(target, mask)
        logs = {
            "pred_value": seen.mean(),
            "target_value": wanted.mean(),
            "pred_value_max": seen.max(),
            "target_value_max": wanted.max(),
            "td_error": masked_mean(error, mask),
        }
        return self.weighted(batch, rows, mask), logs
