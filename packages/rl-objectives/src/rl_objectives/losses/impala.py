"""IMPALA: the policy gradient and the critic's regression on V-trace, computed with the networks as they are now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key
from rl_core.losses.module import LossModule
from rl_core.losses.reduction import masked_mean, masked_rows
from rl_core.policy_state import reads_sequences
from rl_objectives.estimators.vtrace import VTrace
from rl_objectives.functional.vtrace import check_threshold
from rl_objectives.losses.actor_critic import ActorCriticKeys, ActorCriticLoss

__all__ = ["IMPALAKeys", "IMPALALoss"]


@dataclass(frozen=True)
class IMPALAKeys(ActorCriticKeys):
    """The entries of :class:`IMPALALoss`."""


class IMPALALoss(ActorCriticLoss):
    r"""The actor-critic loss of trajectories that older policies collected.

    .. math::
        L = -\log\pi(a_t|s_t) A_t + c_v \, d(V_t, v_t) - c_e H

    with v and A of :class:`VTrace` (eq. 1 and section 4.2: A already holds the weight rho), held constant. They are
    computed in each call with the networks as they are now; an advantage in the batch is not read. So the batch is one
    of trajectories, [*B, T], not of shuffled rows.

    Returns ``loss_objective``, ``loss_critic``, ``loss_entropy`` (add them up) and the detached logs ``entropy``,
    ``explained_variance``, ``mean_ratio`` (of pi / mu) and ``clip_fraction`` (the share of ratios over rho_thresh).

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``. It is evaluated at the stored
            actions.
        critic_network: a module with ``in_keys`` that outputs the state's value.
        rho_thresh: the largest weight of a step's error.
        c_thresh: the largest weight in the trace.
        entropy_coeff: weight of the entropy, may be assigned later (schedules).
        critic_coeff: weight of the critic's loss, likewise.
        loss_critic_type: "l2", "smooth_l1" or "l1"; with "l2" and 0.5 the paper's baseline loss.
        **options: ``entropy_bonus``, ``samples_mc_entropy``, ``normalize_advantage``, ``advantage_norm``,
            ``separate_losses`` and ``reduction`` of :class:`A2CLoss`.

    Raises:
        SpecError: an option is not admitted, or the estimator is another than VTrace.

    Espeholt et al., 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures,
    section 4.2, arXiv 1802.01561.
    """

    default_keys: ClassVar[Any] = IMPALAKeys()
    default_value_estimator: ClassVar[type[ValueEstimator] | str | None] = VTrace

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        rho_thresh: float = 1.0,
        c_thresh: float = 1.0,
        entropy_coeff: float = 0.01,
        critic_coeff: float = 0.5,
        loss_critic_type: str = "l2",
        **options: Any,
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            entropy_coeff=entropy_coeff,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            **options,
        )
        if not self.has_critic:
            raise SpecError("IMPALALoss needs a critic_network and a critic_coeff: V-trace corrects its values")
        self.rho_thresh = check_threshold("rho_thresh", rho_thresh)
        self.c_thresh = check_threshold("c_thresh", c_thresh)

    def make_value_estimator(self, value_type: Any = None, **hyperparameters: Any) -> LossModule:
        """Set the discount, ``gamma=...``, and other options of :class:`VTrace`."""
        if value_type is None:
            hyperparameters = {"rho_thresh": self.rho_thresh, "c_thresh": self.c_thresh, **hyperparameters}
        super().make_value_estimator(value_type, **hyperparameters)
        if not isinstance(self.value_estimator, VTrace):
            got = type(self.value_estimator).__name__
            self.__dict__["_value_estimator"] = None
            raise SpecError(f"IMPALALoss is made of V-trace; got {got}. With another estimator it is A2CLoss.")
        return self

    def step_names(self) -> list[str]:
        """The names of the entries that are read beside the networks' inputs."""
        return ["action", "sample_log_prob", "reward", "done", "terminated"]

    def default_out_keys(self) -> list[Key]:
        keys: list[Key] = ["loss_objective", "loss_critic"]
        keys += ["loss_entropy", "entropy"] if self.entropy_bonus else []
        keys += ["explained_variance"]
        keys += ["value_clip_fraction"] if self.has_value_clip else []
        return [*keys, "mean_ratio", "clip_fraction"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B, T]."""
        mask, estimator = self.valid_rows(batch), self.value_estimator
        assert isinstance(estimator, VTrace)
        log_prob, distribution = self._log_prob(batch)
        value, next_value = self._both_values(batch, estimator)
        with torch.no_grad():
            steps = estimator.with_log_probs(batch, estimator.read_signals(batch), log_prob)
            advantage, target = estimator.estimate(steps, value.detach(), next_value)
            advantage = self._normalized(advantage, mask)
        score = self._like_advantage(self._paths["action"], log_prob, advantage)
        losses = {"loss_objective": self._reduced(score * advantage, mask, -1.0)}
        distance, critic_logs = self._value_distance(batch, value, target, mask)
        losses["loss_critic"] = self._reduced(distance, mask, self.critic_coeff)
        self._add_entropy(losses, distribution, log_prob, mask)
        ratio = masked_rows((steps.log_pi - steps.log_mu).exp(), mask)
        above = (ratio > estimator.rho_thresh).to(ratio.dtype)
        return {**losses, **critic_logs, "mean_ratio": ratio.mean(), "clip_fraction": masked_mean(above)}

    def _both_values(self, batch: TensorDictBase, estimator: VTrace) -> tuple[Tensor, Tensor]:
        """V with its gradient, V' without."""
        network = estimator.value_network
        if network is not None and reads_sequences(network):
            value, next_value = estimator.values(batch)
            return value, next_value.detach()
        with torch.no_grad():
            next_value = estimator.next_value(batch)
        return self._value(batch), next_value
