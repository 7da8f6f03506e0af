"""Soft actor-critic with twin critics and a learnt temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key
from rl_core.losses.keys import quoted
from rl_core.losses.reduction import masked_mean
from rl_core.specs import TensorSpec
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.functional.soft_value import soft_value
from rl_objectives.losses.off_policy import deterministic
from rl_objectives.losses.temperature import TemperatureLoss, check_stochastic, sample_with_log_prob

__all__ = ["SACLoss"]


class SACLoss(TemperatureLoss):
    r"""Soft actor-critic, without a network for state values.

    .. math::
        L_Q = \sum_i d(Q_i(s, a), \; r + \gamma (1 - m) [\min_j Q'_j(s', a') - \alpha \log \pi(a'|s')])

        L_\pi = \alpha \log \pi(\tilde a|s) - \min_i Q_i(s, \tilde a), \qquad
        L_\alpha = -\log\alpha (\log \pi(\tilde a|s) + H)

    with a' and a~ drawn from the policy. Returns ``loss_actor``, ``loss_qvalue``, ``loss_alpha`` (add them up) and the
    detached logs ``alpha``, ``entropy`` (mean of -log pi), ``td_error`` (mean of the largest absolute error).

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``.
        qvalue_network: a module that reads observations and the action and writes "state_action_value"; or a list of
            different ones.
        value_network: with it, this gives a :class:`SACv1Loss`.
        num_qvalue_nets: copies of a single qvalue_network, each drawn for itself.
        loss_function: see :class:`OffPolicyLoss`.
        alpha_init: see :class:`TemperatureLoss`.
        min_alpha: likewise.
        max_alpha: likewise.
        action_spec: accepted for compatibility: the size of an action is read from the data.
        fixed_alpha: see :class:`TemperatureLoss`.
        target_entropy: likewise.
        delay_actor: sample the next action from a target actor.
        delay_qvalue: evaluate the next action by target critics, moved by SoftUpdate.
        skip_done_states: accepted for compatibility: whatever the value after a termination is, it does not count.
        **options: of :class:`OffPolicyLoss`: gamma, separate_losses, reduction, use_prioritized_weights, priority_type.

    Raises:
        SpecError: an option is not admitted.

    Haarnoja et al., 2018, Soft Actor-Critic Algorithms and Applications, eq. 5, 7 and 18, arXiv 1812.05905.
    """

    def __new__(cls, actor_network: Any = None, qvalue_network: Any = None, value_network: Any = None, **_: Any) -> Any:
        """Version 1 of the algorithm is asked for by its value network, as scripts do."""
        if value_network is not None and cls is SACLoss:
            from rl_objectives.losses.sac_v1 import SACv1Loss  # here: it is a subclass of this one

            return object.__new__(SACv1Loss)
        return object.__new__(cls)

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: None = None,
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        action_spec: TensorSpec | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | Tensor | str = "auto",
        delay_actor: bool = False,
        delay_qvalue: bool = True,
        skip_done_states: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            alpha_init=alpha_init,
            min_alpha=min_alpha,
            max_alpha=max_alpha,
            fixed_alpha=fixed_alpha,
            target_entropy=target_entropy,
            loss_function=loss_function,
            **options,
        )
        owner = type(self).__name__
        if value_network is not None:
            raise SpecError(
                f"{owner} has no value_network: use SACv1Loss(actor_network, qvalue_network, value_network)"
            )
        check_stochastic(actor_network, owner)
        self.add_actor_and_critics(
            actor_network, qvalue_network, num_qvalue_nets, delay_actor=delay_actor, delay_critics=delay_qvalue
        )

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "loss_qvalue", "loss_alpha", "alpha", "entropy", "td_error"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        self.keep_alpha_in_bounds()
        mask = self.valid_rows(batch)
        # The critics come first: what their training changes in them (running moments) must not change any more once
        # the graph of the actor's loss holds it.
        qvalue, qvalue_logs = self._qvalue(batch, mask)
        actor, actor_logs = self._actor(batch, mask)
        log_prob = actor_logs.pop("log_prob")
        return {
            "loss_actor": actor,
            "loss_qvalue": qvalue,
            "loss_alpha": self.weighted(batch, self.alpha_rows(log_prob), mask),
            "alpha": self.alpha,
            **actor_logs,
            **qvalue_logs,
        }

    # ---- for scripts that update one part at a time

    def actor_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss of a batch, and logs; among them ``log_prob``, [*B], for ``alpha_loss``."""
        self.keep_alpha_in_bounds()
        with deterministic(), self.along_time(batch):
            return self._actor(batch, self.valid_rows(batch))

    def qvalue_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critics' loss of a batch, and logs; the priorities are written into the batch."""
        self.keep_alpha_in_bounds()
        with deterministic(), self.along_time(batch):
            return self._qvalue(batch, self.valid_rows(batch))

    # ---- the parts

    def _actor(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        action, log_prob = sample_with_log_prob(self.distribution(batch), type(self).__name__)
        self._action_size = action.numel() // max(log_prob.numel(), 1)
        value = self.policy_value(self.critic_values(batch, action, hold_out=True))
        rows = -soft_value(value, self.as_value(log_prob, value), self.alpha).squeeze(-1)
        logs = self.actor_logs(value.detach(), log_prob.detach(), mask)
        return self.weighted(batch, rows, mask), {**logs, "log_prob": log_prob.detach()}

    def _qvalue(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            next_value = self.next_state_value(batch)
            target = self.td_target(batch, next_value)
        values = self.critic_values(batch, self.read(batch, "action"))
        rows, error = self.critic_distance(values, target)
        self.report(batch, error, mask)
        return self.weighted(batch, rows, mask), self.qvalue_logs(error, next_value, target, mask)

    # ---- what variants change

    def next_state_value(self, batch: TensorDictBase) -> Tensor:
        """The soft value of the next state, [*B, 1]; called without gradient."""
        distribution = self.distribution(batch, "next", target=True)
        action, log_prob = sample_with_log_prob(distribution, type(self).__name__)
        value = self.pessimistic_value(self.critic_values(batch, action, "next", target=True))
        return soft_value(value, self.as_value(log_prob, value), self.alpha)

    def policy_value(self, values: Tensor) -> Tensor:
        """The value that the policy is to raise, [*B, 1], from those of all critics, [N, *B, 1]."""
        return smallest_value(values)

    def pessimistic_value(self, values: Tensor) -> Tensor:
        """The value of a next action, [*B, 1], from those of all target critics, [N, *B, 1]."""
        return smallest_value(values)

    def actor_logs(self, value: Tensor, log_prob: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """The logs of the actor's loss."""
        return {"entropy": -masked_mean(log_prob, mask)}

    def qvalue_logs(self, error: Tensor, next_value: Tensor, target: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """The logs of the critics' loss."""
        return {"td_error": masked_mean(error, mask)}

    def as_value(self, log_prob: Tensor, value: Tensor) -> Tensor:
        """A log-probability [*B] with the value's trailing dimension.

        Raises:
            LossError: they do not fit.
        """
        if log_prob.shape == value.shape[:-1]:
            return log_prob.unsqueeze(-1)
        raise LossError(
            f"{type(self).__name__}: the policy gives {quoted(self.path('action'))} log-probabilities "
            f"{list(log_prob.shape)}, but the critics' {quoted(self.path(self.value_key))} is {list(value.shape)}. A "
            "distribution over a vector of actions sums over it (Independent)."
        )
