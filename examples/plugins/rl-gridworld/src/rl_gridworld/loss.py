"""`ReinforceLoss`: the policy gradient of whole returns, with a learned baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key
from rl_core.losses import (
    LossKeys,
    LossModule,
    call_on_tensors,
    distribution_on_tensors,
    entry,
    read_inputs,
)

__all__ = ["ReinforceKeys", "ReinforceLoss"]


@dataclass(frozen=True)
class ReinforceKeys(LossKeys):
    """The entries that the loss reads; users rename them with `loss.set_keys(...)`."""

    action: Key = field(default="action", metadata=entry(producer="The collecting policy writes it."))
    """[*B, ...]."""
    returns: Key = field(default="returns", metadata=entry(producer="Run reward_to_go(rollout) on the batch before."))
    """[*B, 1]: the sum of rewards from here to the end of the episode."""
    value: Key = "state_value"
    """[*B, 1]: what the baseline writes."""


class ReinforceLoss(LossModule):
    r"""REINFORCE with a baseline.

    .. math:: L = -\log\pi(a|s)\,(G - b(s)) + c\,(G - b(s))^2

    The first term, `loss_policy`, moves the policy only, the second, `loss_baseline`, the baseline only.

    Args:
        actor_network: a policy with `in_keys` and `get_dist`.
        baseline_network: a module with `in_keys` that writes the value.
        baseline_coeff: weight of the baseline's loss.
        reduction: "mean", "sum" or "none" (per row).

    Williams, 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning.
    """

    default_keys: ClassVar[Any] = ReinforceKeys()

    def __init__(
        self,
        actor_network: nn.Module,
        baseline_network: nn.Module,
        *,
        baseline_coeff: float = 0.5,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.add_network("actor_network", actor_network)
        self.add_network("baseline_network", baseline_network)
        self.add_scalar("baseline_coeff", baseline_coeff)

    def default_in_keys(self) -> list[Key]:
        """What the networks read, the action and the return."""
        networks = dict.fromkeys([*self.actor_network.in_keys, *self.baseline_network.in_keys])
        return [*networks, self.path("action"), self.path("returns")]

    def default_out_keys(self) -> list[Key]:
        """Two losses and a log."""
        return ["loss_policy", "loss_baseline", "advantage"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses of a batch [*B]."""
        returns, mask = self.read(batch, "returns"), self.valid_rows(batch)
        advantage = returns - self._baseline(batch)  # [*B, 1]
        surplus = advantage.detach().squeeze(-1)  # [*B]
        return {
            "loss_policy": self.reduce(-self._log_prob(batch) * surplus, mask),
            "loss_baseline": self.reduce(self.baseline_coeff * advantage.squeeze(-1).square(), mask),
            "advantage": self.reduce(surplus, mask),
        }

    def _log_prob(self, batch: TensorDictBase) -> Tensor:
        inputs = read_inputs(self.actor_network, batch, type(self).__name__)
        policy = distribution_on_tensors(self.actor_network, inputs, batch.batch_size)
        return policy.log_prob(self.read(batch, "action"))

    def _baseline(self, batch: TensorDictBase) -> Tensor:
        inputs = read_inputs(self.baseline_network, batch, type(self).__name__)
        return call_on_tensors(self.baseline_network, inputs, self.path("value"), batch.batch_size)
