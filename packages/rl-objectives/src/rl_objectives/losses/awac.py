"""Advantage-weighted actor-critic: a critic of the policy, and regression on the dataset's better actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.advantage_weighting import advantage_weight
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.losses.action_samples import draw_actions, entropy_per_row, values_of_actions
from rl_objectives.losses.imitation import check_stochastic, log_prob_of
from rl_objectives.losses.off_policy import OffPolicyLoss

__all__ = ["AWACLoss"]


class AWACLoss(OffPolicyLoss):
    r"""Advantage-weighted actor-critic, for offline data that online steps may follow.

    .. math::
        L_Q = \sum_i d(Q_i(s, a), \; r + \gamma (1 - m) \min_j Q'_j(s', a')), \qquad a' \sim \pi(s')

        L_\pi = -\min(\exp(A / \lambda), w_{max}) \log \pi(a|s), \qquad
        A = \min_i Q_i(s, a) - \frac{1}{n} \sum_k \min_i Q_i(s, \tilde a_k)

    with a~ drawn from the policy. Returns ``loss_actor``, ``loss_qvalue`` (add them up) and the detached logs
    ``entropy``, ``advantage`` (its mean), ``td_error`` (mean of the largest absolute error of a critic).

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``.
        qvalue_network: a module that reads observations and the action and writes "state_action_value"; or a list of
            different ones.
        num_qvalue_nets: copies of a single qvalue_network, each drawn for itself.
        loss_function: distance of critics from their targets: "smooth_l1", "l2" or "l1".
        temperature: lambda, above 0: smaller is greedier. May be assigned later.
        num_samples: n, the actions that estimate the state's value.
        max_weight: w_max, the largest weight of an action.
        delay_actor: draw next actions from a target actor.
        delay_qvalue: evaluate next actions by target critics, moved by SoftUpdate.
        **options: of :class:`OffPolicyLoss`: gamma, separate_losses, reduction, use_prioritized_weights, priority_type.

    Raises:
        SpecError: an option is not admitted.

    Nair et al., 2020, AWAC: Accelerating Online Reinforcement Learning with Offline Datasets, algorithm 1, arXiv
    2006.09359.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        temperature: float = 1.0,
        num_samples: int = 1,
        max_weight: float = 100.0,
        delay_actor: bool = False,
        delay_qvalue: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(loss_function=loss_function, **options)
        owner = type(self).__name__
        if temperature <= 0 or max_weight <= 0 or num_samples < 1:
            raise SpecError(
                f"{owner} needs temperature > 0, max_weight > 0 and num_samples >= 1; got {temperature}, {max_weight} "
                f"and {num_samples}"
            )
        check_stochastic(actor_network, owner)
        self.add_actor_and_critics(
            actor_network, qvalue_network, num_qvalue_nets, delay_actor=delay_actor, delay_critics=delay_qvalue
        )
        self.add_scalar("temperature", temperature)
        self.num_samples = num_samples
        self.max_weight = float(max_weight)

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "loss_qvalue", "entropy", "advantage", "td_error"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask, action = self.valid_rows(batch), self.read(batch, "action")
        with torch.no_grad():
            target = self.td_target(batch, self._next_value(batch))
        values = self.critic_values(batch, action)
        rows, error = self.critic_distance(values, target)
        self.report(batch, error, mask)
        distribution = self.distribution(batch)
        log_prob = log_prob_of(self, distribution, action)
        with torch.no_grad():
            advantage = self._advantage(batch, distribution, values)
            entropy = entropy_per_row(distribution)
        if log_prob.shape != advantage.shape:
            raise SpecError(
                f"{type(self).__name__}: log-probabilities {list(log_prob.shape)} and advantages "
                f"{list(advantage.shape)} must have one shape"
            )
        actor = -advantage_weight(advantage, 1 / self.temperature, self.max_weight) * log_prob
        return {
            "loss_actor": self.weighted(batch, actor, mask),
            "loss_qvalue": self.weighted(batch, rows, mask),
            "entropy": masked_mean(entropy, mask),
            "advantage": masked_mean(advantage, mask),
            "td_error": masked_mean(error, mask),
        }

    def _next_value(self, batch: TensorDictBase) -> Tensor:
        """The pessimist's value of an action that the policy takes next, [*B, 1]."""
        action = draw_actions(self.distribution(batch, "next", target=True), 1)[0][0]
        return smallest_value(self.critic_values(batch, action, "next", target=True))

    def _advantage(self, batch: TensorDictBase, distribution: Any, values: Tensor) -> Tensor:
        """How much better the dataset's action is than the policy's, [*B]."""
        drawn = draw_actions(distribution, self.num_samples)[0]
        baseline = smallest_value(values_of_actions(self, batch, drawn)).mean(0)
        return (smallest_value(values.detach()) - baseline).squeeze(-1)
