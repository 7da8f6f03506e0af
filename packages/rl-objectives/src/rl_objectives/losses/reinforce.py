"""REINFORCE: the policy gradient of the stored actions, weighted by returns or advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key
from rl_core.losses.module import LossModule
from rl_objectives.estimators.base import TrajectoryEstimator
from rl_objectives.losses.actor_critic import ActorCriticKeys, ActorCriticLoss

__all__ = ["ReinforceKeys", "ReinforceLoss"]


@dataclass(frozen=True)
class ReinforceKeys(ActorCriticKeys):
    """The entries of :class:`ReinforceLoss`."""


class ReinforceLoss(ActorCriticLoss):
    r"""The likelihood-ratio policy gradient, with a critic as a baseline or without.

    .. math:: L = -\log\pi(a|s) A + d(V, G)

    Returns ``loss_actor`` and, with a critic, ``loss_value`` and the detached log ``explained_variance``. The policy is
    evaluated at the *stored* actions. Where the batch has no advantage, the value estimator (GAE by default) computes
    it with the critic. Without a critic give the advantage, for instance returns:
    ``batch["advantage"] = reward2go(batch["next", "reward"], batch["next", "done"], gamma=0.99)``.

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``.
        critic_network: a module with ``in_keys`` that outputs the state's value; None: no baseline.
        delay_value: let a target critic, moved by SoftUpdate or HardUpdate, give the values that estimate advantages.
        loss_critic_type: "smooth_l1", "l2" or "l1".
        critic_coeff: weight of the critic's loss, may be assigned later.
        normalize_advantage: standardise the advantage over the batch.
        advantage_norm: another way to normalise it, a function of the advantage.
        separate_losses: keep the critic's loss from moving weights that the actor shares.
        functional: kept for compatibility.
        reduction: "mean", "sum" or "none" (per row).
        gamma: not here: ``loss.make_value_estimator(gamma=...)``.

    Raises:
        SpecError: an option is not admitted.
        TypeError: gamma is given.

    Williams, 1992, Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning.
    """

    default_keys: ClassVar[Any] = ReinforceKeys()

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module | None = None,
        *,
        delay_value: bool = False,
        loss_critic_type: str = "smooth_l1",
        critic_coeff: float = 1.0,
        **options: Any,
    ) -> None:
        delay_value = delay_value and critic_network is not None
        super().__init__(
            actor_network,
            critic_network,
            entropy_bonus=False,
            loss_critic_type=loss_critic_type,
            critic_coeff=critic_coeff,
            delay_value=delay_value,
            **options,
        )
        self.delay_value = delay_value

    def make_value_estimator(self, value_type: Any = None, **hyperparameters: Any) -> LossModule:
        """Choose how advantages are estimated, with the target critic if ``delay_value``.

        Args:
            value_type: see :meth:`LossModule.make_value_estimator`.
            **hyperparameters: for the estimator's constructor, e.g. ``gamma=0.99, lmbda=0.95``.
        """
        super().make_value_estimator(value_type, **hyperparameters)
        estimator = self.value_estimator
        online = self._modules.get("critic_network")
        if self.delay_value and isinstance(estimator, TrajectoryEstimator) and estimator.value_network is online:
            estimator.value_network = self.target_or_online("critic_network")
        return self

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "loss_value", "explained_variance"] if self.has_critic else ["loss_actor"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask = self.valid_rows(batch)
        advantage, batch = self._advantage(batch, mask)
        log_prob, _ = self._log_prob(batch)
        score = self._like_advantage(self._paths["action"], log_prob, advantage)
        losses = {"loss_actor": self._reduced(score * advantage, mask, -1.0)}
        if not self.has_critic:
            return losses
        distance, logs = self._critic_loss(batch, mask)
        return {**losses, "loss_value": self._reduced(distance, mask, self.critic_coeff), **logs}
