"""Truncated quantile critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.estimators import ValueEstimator
from rl_core.losses.keys import quoted
from rl_objectives.estimators.td import TD0Estimator
from rl_objectives.functional.ensembles import truncated_mixture
from rl_objectives.functional.quantile import quantile_huber_loss, quantile_midpoints
from rl_objectives.losses.sac import SACLoss

__all__ = ["TQCLoss"]


class TQCLoss(SACLoss):
    r"""Soft actor-critic with critics of whole distributions, whose largest atoms are left out of the target.

    .. math::
        L_Q = \sum_n \frac{1}{M K} \sum_{m, k} |\tau_m - 1\{u < 0\}| \, L_H(u), \qquad
        u = r + \gamma (1 - m') [z_{(k)} - \alpha \log \pi(a'|s')] - \theta^m_n(s, a)

    where z_(1) ... z_(K) are the smallest K = N (M - drop) atoms of all N target critics at (s', a'), L_H is Huber's
    loss with threshold 1 and m' is the termination. The actor raises the mean of all atoms. Returns what
    :class:`SACLoss` returns; the error of a row, its priority, is that of the distribution's mean.

    Args:
        actor_network: see :class:`SACLoss`.
        qvalue_network: a module that reads observations and the action and writes "state_action_value", [*B, M].
        num_qvalue_nets: N.
        top_quantiles_to_drop_per_net: atoms of the target left out, per critic; 0 to M - 1.
        **options: of :class:`SACLoss`; ``loss_function`` is not among them.

    Raises:
        SpecError: an option is not admitted; all atoms would be dropped.

    Kuznetsov et al., 2020, Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile
    Critics, eq. 9 to 13, arXiv 2005.04269.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 5,
        top_quantiles_to_drop_per_net: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, num_qvalue_nets=num_qvalue_nets, **options)
        if top_quantiles_to_drop_per_net < 0:
            raise SpecError(f"top_quantiles_to_drop_per_net is at least 0; got {top_quantiles_to_drop_per_net}")
        self.top_quantiles_to_drop_per_net = top_quantiles_to_drop_per_net

    def check_estimator(self, estimator: ValueEstimator) -> None:
        if not isinstance(estimator, TD0Estimator):
            raise SpecError(f"TQCLoss moves whole distributions by one step: use TD0, not {type(estimator).__name__}")

    def policy_value(self, values: Tensor) -> Tensor:
        return values.mean(-1, keepdim=True).mean(0)

    def pessimistic_value(self, values: Tensor) -> Tensor:
        return truncated_mixture(values, self.top_quantiles_to_drop_per_net)

    def critic_distance(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        atoms = values.shape[-1]
        if values.shape[1:-1] != target.shape[:-1]:
            raise LossError(
                f"TQCLoss: the critics' {quoted(self.path('state_action_value'))} {list(values.shape[1:])} and the "
                f"atoms of their targets {list(target.shape)} must have the same rows"
            )
        levels = quantile_midpoints(atoms, dtype=values.dtype, device=values.device)
        target_of_each = target.expand(values.shape[0], *target.shape)
        distance = quantile_huber_loss(values, levels, target_of_each).sum(0).squeeze(-1) / atoms
        error = (values.detach().mean(-1, keepdim=True) - target.mean(-1, keepdim=True)).abs().amax(0)
        return distance, error
