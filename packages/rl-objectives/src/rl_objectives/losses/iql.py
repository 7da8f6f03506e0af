"""Implicit Q-learning: values by expectile regression, a policy by advantage-weighted regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import entry
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.advantage_weighting import advantage_weight, expectile_loss
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.losses.action_samples import entropy_per_row
from rl_objectives.losses.critic import check_same_shape, shared_weights
from rl_objectives.losses.imitation import check_stochastic, log_prob_of
from rl_objectives.losses.off_policy import OffPolicyKeys, OffPolicyLoss

__all__ = ["IQLKeys", "IQLLoss"]


@dataclass(frozen=True)
class IQLKeys(OffPolicyKeys):
    """The entries of implicit Q-learning."""

    value: Key = field(default="state_value", metadata=entry(producer="The value network writes it."))
    """[*B, 1]: what the value network writes."""


class IQLLoss(OffPolicyLoss):
    r"""Implicit Q-learning: no action outside of the dataset is ever evaluated.

    .. math::
        L_V = L_2^\tau(\min_i Q'_i(s, a) - V(s)), \qquad
        L_Q = \sum_i d(Q_i(s, a), \; r + \gamma (1 - m) V(s'))

        L_\pi = -\min(\exp(\beta [\min_i Q'_i(s, a) - V(s)]), w_{max}) \log \pi(a|s)

    with Q' the target critics. Returns ``loss_actor``, ``loss_qvalue``, ``loss_value`` (add them up) and the detached
    logs ``entropy``, ``td_error`` (mean of the largest absolute error of a critic).

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``.
        qvalue_network: a module that reads observations and the action and writes "state_action_value"; or a list of
            different ones.
        value_network: a module that reads observations and writes "state_value".
        num_qvalue_nets: copies of a single qvalue_network, each drawn for itself.
        loss_function: distance of critics from their targets: "smooth_l1", "l2" or "l1".
        temperature: beta, an inverse temperature: larger is greedier. The paper takes 3 to 10. May be assigned later.
        expectile: tau, in (0, 1): 0.5 is the mean over the dataset's actions; the paper takes 0.7 to 0.9. May be
            assigned later.
        max_weight: w_max, the largest weight of an action.
        delay_qvalue: evaluate the dataset's actions by target critics, moved by SoftUpdate.
        **options: of :class:`OffPolicyLoss`: gamma, separate_losses, reduction, use_prioritized_weights, priority_type.

    Raises:
        SpecError: an option is not admitted.

    Kostrikov et al., 2021, Offline Reinforcement Learning with Implicit Q-Learning, eq. 5, 6 and 7, arXiv 2110.06169.
    """

    default_keys: ClassVar[Any] = IQLKeys()
    value_network_name: ClassVar[str] = "value_network"

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: nn.Module,
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        temperature: float = 1.0,
        expectile: float = 0.5,
        max_weight: float = 100.0,
        delay_qvalue: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(loss_function=loss_function, **options)
        owner = type(self).__name__
        if not 0.0 < expectile < 1.0:
            raise SpecError(f"{owner}: expectile lies in (0, 1); got {expectile}")
        if temperature < 0 or max_weight <= 0:
            raise SpecError(f"{owner} needs temperature >= 0 and max_weight > 0; got {temperature} and {max_weight}")
        check_stochastic(actor_network, owner)
        self.add_actor_and_critics(
            actor_network, qvalue_network, num_qvalue_nets, delay_actor=False, delay_critics=delay_qvalue
        )
        self.add_network("value_network", value_network)
        self.add_scalar("temperature", temperature)
        self.add_scalar("expectile", expectile)
        self.max_weight = float(max_weight)

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self.network("value_network").in_keys]  # type: ignore[union-attr]
        keys = [*super().default_in_keys(), *inputs, *(join("next", key) for key in inputs)]
        return list(dict.fromkeys(keys))

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "loss_qvalue", "loss_value", "entropy", "td_error"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask, action = self.valid_rows(batch), self.read(batch, "action")
        values = self.taken_values(batch, action)
        with torch.no_grad():
            judged = self.taken_values(batch, action, target=True) if self._is_delayed else values.detach()
            pessimist = smallest_value(judged)
            target = self.td_target(batch, self.state_value(batch, "next"))
        value = self.state_value(batch)
        names = self._paths["value"], self._paths[self.value_key]
        check_same_shape(type(self).__name__, (names[0], value), (names[1], pessimist))
        rows, error = self.critic_distance(values, target)
        self.report(batch, error, mask)
        expectile = expectile_loss(pessimist - value, self.expectile).squeeze(-1)
        actor, entropy = self._actor_rows(batch, action, (pessimist - value.detach()).squeeze(-1))
        return {
            "loss_actor": self.weighted(batch, actor, mask),
            "loss_qvalue": self.weighted(batch, rows, mask),
            "loss_value": self.weighted(batch, expectile, mask),
            "entropy": masked_mean(entropy, mask),
            "td_error": masked_mean(error, mask),
        }

    @property
    def _is_delayed(self) -> bool:
        return self.critic_name in self.target_names

    def taken_values(self, batch: TensorDictBase, action: Tensor, *, target: bool = False) -> Tensor:
        """The values that all critics give to the dataset's actions, [N, *B, 1]."""
        return self.critic_values(batch, action, target=target)

    def state_value(self, batch: TensorDictBase, under: Key | None = None) -> Tensor:
        """V of the observations at the root or under "next", [*B, 1]."""
        network, actor = self.network("value_network"), self.network("actor_network")
        weights = (shared_weights(network, actor) or None) if self.separate_losses else None
        return self.output_of(network, self._paths["value"], batch, under, weights=weights)

    def _actor_rows(self, batch: TensorDictBase, action: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's loss and its policy's entropy per row, [*B]."""
        distribution = self.distribution(batch)
        log_prob = log_prob_of(self, distribution, action)
        if log_prob.shape != advantage.shape:
            raise SpecError(
                f"{type(self).__name__}: log-probabilities {list(log_prob.shape)} and advantages "
                f"{list(advantage.shape)} must have one shape"
            )
        with torch.no_grad():
            entropy = entropy_per_row(distribution)
        return -advantage_weight(advantage, self.temperature, self.max_weight) * log_prob, entropy
