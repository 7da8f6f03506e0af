"""V-trace as a module: targets and advantages of a policy from trajectories that an older policy collected."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from rl_objectives.estimators.off_policy import OffPolicyEstimator, OffPolicySteps
from rl_objectives.estimators.trajectories import Steps, trailing
from rl_objectives.functional.vtrace import check_threshold, vtrace_advantage_estimate

__all__ = ["VTrace"]


class VTrace(OffPolicyEstimator):
    r"""V-trace with truncated importance weights.

    .. math::
        v_t - V_t = \rho_t (r_t + \gamma (1 - m_t) V'_t - V_t) + \gamma (1 - d_t) c_t (v_{t+1} - V_{t+1}), \qquad
        A_t = \rho_t (r_t + \gamma (1 - m_t) v_{t+1} - V_t)

    with rho and c the ratios pi / mu at the stored actions, each cut at its threshold. Writes ``advantage``,
    ``value_target`` (= v), ``state_value`` and ``("next", "state_value")``, each [*B, T, 1].

    Args:
        gamma: discount per step.
        actor_network: the policy to evaluate, a module with ``in_keys`` and ``get_dist``. A loss gives its own.
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        rho_thresh: the largest weight of a step's error.
        c_thresh: the largest weight in the trace.
        average_adv: standardise the advantage over valid rows; the target stays raw.
        **options: of :class:`TrajectoryEstimator`.

    Raises:
        SpecError: there is no policy, or a threshold is not positive.

    Espeholt et al., 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures,
    eq. 1 and section 4.2, arXiv 1802.01561.
    """

    default_hyperparameters: ClassVar[dict[str, Any]] = {"gamma": 0.99}

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        actor_network: nn.Module | None = None,
        value_network: nn.Module | None = None,
        rho_thresh: float | Tensor = 1.0,
        c_thresh: float | Tensor = 1.0,
        average_adv: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, actor_network=actor_network, value_network=value_network, **options)
        self.rho_thresh = check_threshold("rho_thresh", rho_thresh)
        self.c_thresh = check_threshold("c_thresh", c_thresh)
        self.average_adv = average_adv

    def estimate(self, steps: Steps, value: Tensor, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """The formula, standardised if asked."""
        assert isinstance(steps, OffPolicySteps)
        acts = trailing(steps.agent_mask, value.ndim)
        advantage, target = vtrace_advantage_estimate(
            steps.gamma,
            steps.log_pi,
            steps.log_mu,
            value,
            next_value,
            steps.reward,
            steps.done,
            steps.terminated,
            self.rho_thresh,
            self.c_thresh,
            steps.time,
            mask=acts,
            exists=None if acts is None else trailing(steps.mask, value.ndim),
        )
        if self.average_adv:
            advantage = steps.standardized(advantage)
        return steps.neutral(advantage, target, value)
