"""Advantage actor-critic: the policy gradient of the stored actions, a critic and an entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor

from rl_core.keys import Key
from rl_objectives.losses.actor_critic import ActorCriticKeys, ActorCriticLoss

__all__ = ["A2CKeys", "A2CLoss"]


@dataclass(frozen=True)
class A2CKeys(ActorCriticKeys):
    """The entries of :class:`A2CLoss`."""


class A2CLoss(ActorCriticLoss):
    r"""The policy gradient with a critic and an entropy bonus.

    .. math:: L = -\log\pi(a|s) A + c_v \, d(V, G) - c_e H

    Returns ``loss_objective``, ``loss_critic``, ``loss_entropy`` (add them up) and the detached logs ``entropy``,
    ``explained_variance`` and, with ``clip_value``, ``value_clip_fraction``. Where the batch has no advantage, the
    loss's value estimator (GAE by default) computes it on the fly.

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``. It is evaluated at the stored
            actions.
        critic_network: a module with ``in_keys`` that outputs the state's value; None: no critic loss.
        entropy_bonus: whether to add ``loss_entropy``.
        samples_mc_entropy: samples that estimate the entropy where the distribution has no closed form.
        entropy_coeff: weight of the entropy, 0.01; may be assigned later (schedules).
        critic_coeff: weight of the critic's loss, 1.0, likewise; None: no critic loss.
        loss_critic_type: "smooth_l1", "l2" or "l1".
        normalize_advantage: standardise the advantage over the batch.
        advantage_norm: another way to normalise it, a function of the advantage.
        clip_value: largest change of the value since collection; None: unlimited.
        separate_losses: keep the critic's loss from moving weights that the actor shares.
        reduction: "mean", "sum" or "none" (per row).

    Raises:
        SpecError: an option is not admitted.
        TypeError: gamma is given: it belongs to ``loss.make_value_estimator(gamma=...)``.

    Mnih et al., 2016, Asynchronous Methods for Deep Reinforcement Learning, section 4, arXiv 1602.01783.
    """

    default_keys: ClassVar[Any] = A2CKeys()

    def default_out_keys(self) -> list[Key]:
        keys = ["loss_objective"]
        keys += ["loss_critic"] if self.has_critic else []
        keys += ["loss_entropy", "entropy"] if self.entropy_bonus else []
        keys += ["explained_variance"] if self.has_critic else []
        keys += ["value_clip_fraction"] if self.has_critic and self.has_value_clip else []
        return list(keys)

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask = self.valid_rows(batch)
        advantage, batch = self._advantage(batch, mask)
        log_prob, distribution = self._log_prob(batch)
        score = self._like_advantage(self._paths["action"], log_prob, advantage)
        losses = {"loss_objective": self._reduced(score * advantage, mask, -1.0)}
        logs = self._add_critic(losses, batch, mask)
        self._add_entropy(losses, distribution, log_prob, mask)
        return losses | logs
