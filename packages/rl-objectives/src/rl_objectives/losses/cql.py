"""Conservative Q-learning for continuous actions: soft actor-critic whose critics keep unseen actions low."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.reduction import masked_mean
from rl_core.specs import TensorSpec
from rl_objectives.functional.cql import conservative_gap, soft_maximum
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.functional.soft_value import soft_value
from rl_objectives.losses.action_box import action_box
from rl_objectives.losses.action_samples import draw_actions, values_of_actions
from rl_objectives.losses.imitation import check_stochastic, log_prob_of
from rl_objectives.losses.temperature import TemperatureLoss, sample_with_log_prob

__all__ = ["CQLLoss"]

_LARGEST_PRICE = 1e6


class CQLLoss(TemperatureLoss):
    r"""Conservative Q-learning, CQL(H), on top of soft actor-critic.

    .. math::
        L_{CQL} = \sum_i w \, [T \log \sum_k \exp(Q_i(s, a_k) / T - \log p(a_k)) - Q_i(s, a)]

        L_Q = \sum_i d(Q_i(s, a), \; r + \gamma (1 - m) \min_j Q'_j(s', a'))

        L_\pi = \alpha \log \pi(\tilde a|s) - \min_i Q_i(s, \tilde a), \qquad
        L_{BC} = \alpha \log \pi(\tilde a|s) - \log \pi(a|s)

    The a_k are ``3 num_random`` actions: uniform ones, the policy's at s, and the policy's at s', each divided by the
    density p that it was drawn from. With ``with_lagrange`` the penalty is ``alpha' (L_CQL,i - threshold)`` with a
    learnt price alpha'.

    Returns ``loss_actor``, ``loss_actor_bc`` (instead of it, for a warm-up: do not add up both), ``loss_qvalue``,
    ``loss_cql``, ``loss_alpha``, with a price ``loss_alpha_prime``, and the detached logs ``alpha``, ``entropy`` (mean
    of -log pi), ``bc_log_prob`` (mean of log pi of the dataset's actions), ``td_error``.

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``, whose samples are
            differentiable.
        qvalue_network: a module that reads observations and the action and writes "state_action_value"; or a list of
            different ones.
        num_qvalue_nets: copies of a single qvalue_network, each drawn for itself.
        loss_function: distance of critics from their targets: "smooth_l1", "l2" or "l1".
        alpha_init: see :class:`TemperatureLoss`.
        min_alpha: likewise.
        max_alpha: likewise.
        action_spec: the action's spec, Bounded, or a Composite with it: where uniform actions are drawn. None: each
            component lies in [-1, 1].
        fixed_alpha: see :class:`TemperatureLoss`.
        target_entropy: likewise.
        delay_actor: draw the target's next action from a target actor.
        delay_qvalue: evaluate next actions by target critics, moved by SoftUpdate.
        temperature: T, above 0, of the soft maximum.
        min_q_weight: w, at least 0.
        max_q_backup: let the target be the best of num_random next actions, as each critic sees them.
        deterministic_backup: leave the entropy out of the target.
        num_random: actions of each of the three kinds.
        with_lagrange: learn the price of the penalty; it is then ``exp(log_alpha_prime)``, at first 1.
        lagrange_thresh: the penalty that costs nothing.
        **options: of :class:`OffPolicyLoss`: gamma, separate_losses, reduction, use_prioritized_weights, priority_type.

    Raises:
        SpecError: an option is not admitted.

    Kumar et al., 2020, Conservative Q-Learning for Offline Reinforcement Learning, eq. 4, section 4 and appendix F,
    arXiv 2006.04779.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
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
        temperature: float = 1.0,
        min_q_weight: float = 1.0,
        max_q_backup: bool = False,
        deterministic_backup: bool = True,
        num_random: int = 10,
        with_lagrange: bool = False,
        lagrange_thresh: float = 0.0,
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
        if temperature <= 0 or min_q_weight < 0 or num_random < 1:
            raise SpecError(
                f"{owner} needs temperature > 0, min_q_weight >= 0 and num_random >= 1; got {temperature}, "
                f"{min_q_weight} and {num_random}"
            )
        check_stochastic(actor_network, owner)
        self.add_actor_and_critics(
            actor_network, qvalue_network, num_qvalue_nets, delay_actor=delay_actor, delay_critics=delay_qvalue
        )
        low, high = action_box(action_spec, self.path("action"), owner)
        self.action_low: Tensor
        self.action_high: Tensor
        self.register_buffer("action_low", low)
        self.register_buffer("action_high", high)
        self.add_scalar("temperature", temperature)
        self.add_scalar("min_q_weight", min_q_weight)
        self.add_scalar("lagrange_thresh", lagrange_thresh)
        self.max_q_backup = max_q_backup
        self.deterministic_backup = deterministic_backup
        self.num_random = num_random
        self.with_lagrange = with_lagrange
        if with_lagrange:
            self.log_alpha_prime = nn.Parameter(torch.zeros(()))

    def default_out_keys(self) -> list[Key]:
        losses = ["loss_actor", "loss_actor_bc", "loss_qvalue", "loss_cql", "loss_alpha"]
        losses += ["loss_alpha_prime"] if self.with_lagrange else []
        return [*losses, "alpha", "entropy", "bc_log_prob", "td_error"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        self.keep_alpha_in_bounds()
        mask, action = self.valid_rows(batch), self.read(batch, "action")
        distribution = self.distribution(batch)
        actor, behaviour, temperature, logs = self._actor_rows(batch, distribution, action, mask)
        values = self.critic_values(batch, action)
        with torch.no_grad():
            target = self.td_target(batch, self._next_value(batch))
        rows, error = self.critic_distance(values, target)
        self.report(batch, error, mask)
        gaps = self.conservative_gaps(batch, distribution, values)
        penalty, price = self._penalty_rows(gaps)
        losses = {
            "loss_actor": actor,
            "loss_actor_bc": behaviour,
            "loss_qvalue": rows,
            "loss_cql": penalty,
            "loss_alpha": temperature,
        }
        if price is not None:
            losses["loss_alpha_prime"] = price
        reduced = {name: self.weighted(batch, values, mask) for name, values in losses.items()}
        return {**reduced, "alpha": self.alpha, **logs, "td_error": masked_mean(error, mask)}

    # ---- the parts

    def _actor_rows(
        self, batch: TensorDictBase, distribution: Any, action: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The actor's two losses and the temperature's, per row, and logs."""
        fresh, log_prob = sample_with_log_prob(distribution, type(self).__name__)
        value = smallest_value(self.critic_values(batch, fresh, hold_out=True)).squeeze(-1)
        stored = log_prob_of(self, distribution, action)
        if not log_prob.shape == stored.shape == value.shape:
            raise SpecError(
                f"{type(self).__name__}: log-probabilities {list(log_prob.shape)} and values {list(value.shape)} of "
                "one action per row must have one shape"
            )
        self._action_size = fresh.numel() // max(log_prob.numel(), 1)
        alpha, fixed = self.alpha, log_prob.detach()
        logs = {"entropy": -masked_mean(fixed, mask), "bc_log_prob": masked_mean(stored.detach(), mask)}
        rows = -soft_value(value, log_prob, alpha), -soft_value(stored, log_prob, alpha), self.alpha_rows(fixed)
        return *rows, logs

    def _next_value(self, batch: TensorDictBase) -> Tensor:
        """The value of the next state, [*B, 1]; called without gradient."""
        distribution = self.distribution(batch, "next", target=True)
        if self.max_q_backup:
            actions, _ = draw_actions(distribution, self.num_random)
            return smallest_value(values_of_actions(self, batch, actions, "next", target=True).amax(1))
        action, log_prob = sample_with_log_prob(distribution, type(self).__name__)
        value = smallest_value(self.critic_values(batch, action, "next", target=True))
        return value if self.deterministic_backup else soft_value(value, log_prob.unsqueeze(-1), self.alpha)

    def conservative_gaps(self, batch: TensorDictBase, distribution: Any, values: Tensor) -> Tensor:
        """How far each critic's soft maximum lies above its value of the dataset's action, times ``min_q_weight``.

        Args:
            batch: [*B].
            distribution: of the policy at s.
            values: of the dataset's actions, [N, *B, 1].

        Returns:
            [N, *B].
        """
        with torch.no_grad():
            drawn = [
                self._uniform_actions(batch),
                draw_actions(distribution, self.num_random),
                draw_actions(self.distribution(batch, "next"), self.num_random),
            ]
            actions = torch.cat([actions for actions, _ in drawn])
            log_density = torch.cat([density for _, density in drawn])
        proposed = values_of_actions(self, batch, actions).squeeze(-1)
        maximum = soft_maximum(proposed, log_density.expand_as(proposed), self.temperature, dim=1)
        return conservative_gap(maximum, values.squeeze(-1), self.min_q_weight)

    def _uniform_actions(self, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Actions drawn uniformly within the bounds, [num_random, *B, A], and their log-density."""
        like, dims = self.read(batch, "action"), batch.ndim
        event = like.shape[dims:]
        low, high = self.action_low, self.action_high
        if low.ndim and low.shape != event:
            raise SpecError(
                f"{type(self).__name__}: an action of the batch is {list(event)}, one of action_spec {list(low.shape)}"
            )
        unit = torch.rand((self.num_random, *like.shape), dtype=like.dtype, device=like.device)
        density = -(high - low).log().to(like).expand(event).sum()
        return low + (high - low) * unit, density.expand(unit.shape[: dims + 1])

    def _penalty_rows(self, gaps: Tensor) -> tuple[Tensor, Tensor | None]:
        """The critics' penalty per row, and the loss of its price if that is learnt."""
        if not self.with_lagrange:
            return gaps.sum(0), None
        price = self.log_alpha_prime.exp().clamp_max(_LARGEST_PRICE)
        excess = gaps - self.lagrange_thresh
        return (price.detach() * excess).sum(0), -price * excess.detach().mean(0)
