"""Proximal policy optimisation: the plain and the clipped surrogate objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key
from rl_core.losses.keys import quoted
from rl_core.losses.networks import distribution_on_tensors, read_inputs
from rl_core.losses.reduction import masked_rows
from rl_objectives.composite import action_log_prob, stored_log_prob
from rl_objectives.functional import ppo
from rl_objectives.functional.statistics import ratio_statistics, share_outside
from rl_objectives.losses.actor_critic import ActorCriticKeys, ActorCriticLoss

__all__ = ["ClipPPOLoss", "PPOKeys", "PPOLoss"]


@dataclass(frozen=True)
class PPOKeys(ActorCriticKeys):
    """The entries of the PPO losses."""


class PPOLoss(ActorCriticLoss):
    r"""The importance-weighted policy gradient with a critic and an entropy bonus.

    .. math:: L = -r A + c_v \, d(V, G) - c_e H, \qquad r = \exp(\log\pi(a|s) - \log\pi_{old}(a|s))

    Returns ``loss_objective``, ``loss_critic``, ``loss_entropy`` (add them up) and the detached logs ``entropy``,
    ``kl_approx``, ``ESS`` (share of the batch), ``max_ratio``, ``mean_ratio``, ``explained_variance``.
    Where the batch has no advantage, the loss's value estimator (GAE by default) computes it on the fly.

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``. Its action may have several
            parts (tensordict's CompositeDistribution): their log-probabilities and entropies are added up.
        critic_network: a module with ``in_keys`` that outputs the state's value; None: no critic loss.
        entropy_bonus: whether to add ``loss_entropy``.
        samples_mc_entropy: samples that estimate the entropy where the distribution has no closed form.
        entropy_coeff: weight of the entropy, may be assigned later (schedules). For an action of several parts a dict
            with a weight per part, fixed.
        critic_coeff: weight of the critic's loss, may be assigned later; None: no critic loss.
        loss_critic_type: "smooth_l1", "l2" or "l1".
        normalize_advantage: standardise the advantage over the batch, once, before anything uses it.
        normalize_advantage_exclude_dims: dimensions of the advantage with moments of their own, e.g. (-2,) for agents.
        advantage_norm: another way to normalise it: a function, or module, of the advantage [*B, 1] that returns one of
            the same shape. It sees masked rows too.
        clip_value: largest change of the value since collection; None: unlimited.
        separate_losses: keep the critic's loss from moving weights that the actor shares.
        delay_actor: measure (and clip) the ratio against a target policy, moved by a target updater, instead of the
            policy that collected the batch; the ratio of those two weighs each row (Hilton et al., 2021).
        max_importance_ratio: the largest weight of a row against the policy that collected it; above it the weight
            stays there and has no gradient. None: unlimited.
        functional: kept for compatibility; networks stay ordinary submodules.
        reduction: "mean", "sum" or "none" (per row).
        gamma: not here: ``loss.make_value_estimator(gamma=...)``.

    Raises:
        SpecError: an option is not admitted.
        TypeError: gamma is given.

    Schulman et al., 2017, Proximal Policy Optimization Algorithms, eq. 6 and 9, arXiv 1707.06347.
    Hilton et al., 2021, Batch Size-Invariance for Policy Optimization, eq. 3, arXiv 2110.00641.
    """

    default_keys: ClassVar[Any] = PPOKeys()

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module | None = None,
        *,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: float | Mapping[str, float] = 0.01,
        critic_coeff: float | None = 1.0,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
        normalize_advantage_exclude_dims: Sequence[int] = (),
        advantage_norm: Callable[[Tensor], Tensor] | None = None,
        clip_value: float | None = None,
        separate_losses: bool = False,
        delay_actor: bool = False,
        max_importance_ratio: float | None = None,
        functional: bool | None = None,
        reduction: str = "mean",
        gamma: float | None = None,
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            entropy_bonus=entropy_bonus,
            samples_mc_entropy=samples_mc_entropy,
            entropy_coeff=entropy_coeff,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            normalize_advantage=normalize_advantage,
            normalize_advantage_exclude_dims=normalize_advantage_exclude_dims,
            advantage_norm=advantage_norm,
            clip_value=clip_value,
            separate_losses=separate_losses,
            delay_actor=delay_actor,
            functional=functional,
            reduction=reduction,
            gamma=gamma,
        )
        if max_importance_ratio is not None and not max_importance_ratio > 0:
            raise SpecError(f"max_importance_ratio is a number > 0, or None; got {max_importance_ratio}")
        self.max_importance_ratio = max_importance_ratio
        self.delay_actor = delay_actor

    def step_names(self) -> list[str]:
        """The names of the entries that are read beside the networks' inputs."""
        return ["action", "sample_log_prob", "reward", "done", "terminated"]

    def default_out_keys(self) -> list[Key]:
        keys = ["loss_objective"]
        keys += ["loss_critic"] if self.has_critic else []
        keys += ["loss_entropy", "entropy"] if self.entropy_bonus else []
        keys += [*self.objective_logs(), "kl_approx", "ESS", "max_ratio", "mean_ratio"]
        keys += ["explained_variance"] if self.has_critic else []
        keys += ["value_clip_fraction"] if self.has_critic and self.has_value_clip else []
        return list(keys)

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask = self.valid_rows(batch)
        advantage, batch = self._advantage(batch, mask)
        log_prob, distribution = self._log_prob(batch)
        log_ratio = self._log_ratio(batch, log_prob, advantage)
        ratio, weight = self._weighted_ratio(batch, log_ratio, advantage)
        gain, objective_logs = self.objective(ratio, advantage, mask)
        gain = gain if weight is None else weight * gain
        penalty, penalty_logs = self.penalty(batch, distribution, advantage, mask)
        gain = gain if penalty is None else gain - penalty
        losses = {"loss_objective": self._reduced(gain, mask, -1.0)}
        critic_logs = self._add_critic(losses, batch, mask)
        self._add_entropy(losses, distribution, log_prob, mask)
        moved = ratio_statistics(masked_rows(log_ratio.detach(), mask))
        ratio_logs = dict(zip(("kl_approx", "ESS", "max_ratio", "mean_ratio"), moved, strict=True))
        return {**losses, **objective_logs, **penalty_logs, **ratio_logs, **critic_logs}

    def objective(self, ratio: Tensor, advantage: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """What is maximised, per row, and logs about it."""
        return ppo.surrogate(ratio, advantage), {}

    def objective_logs(self) -> list[str]:
        """The names of the logs that :meth:`objective` and :meth:`penalty` return."""
        return []

    def penalty(
        self, batch: TensorDictBase, distribution: Any, advantage: Tensor, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """What is taken off the objective, per row, and logs about it."""
        return None, {}

    # ---- the ratio

    def _log_ratio(self, batch: TensorDictBase, log_prob: Tensor, advantage: Tensor) -> Tensor:
        """Log r against the policy that collected the batch, of the advantage's shape."""
        key = self._paths["sample_log_prob"]
        old = stored_log_prob(batch, key, self._paths["action"])
        if old is None:
            raise self.missing(batch, "sample_log_prob")
        if old.requires_grad:
            raise self._stored_with_graph("sample_log_prob")
        if log_prob.shape != old.shape:
            raise LossError(
                f"{type(self).__name__}: the policy gives {quoted(self._paths['action'])} log-probabilities "
                f"{list(log_prob.shape)}, but {quoted(key)} has {list(old.shape)}; they must have one shape. A "
                "distribution over a vector of actions sums over it (Independent)."
            )
        return self._like_advantage(key, log_prob - old, advantage)

    def _weighted_ratio(
        self, batch: TensorDictBase, log_ratio: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The ratio that the objective takes, and a weight per row beside it."""
        limit = self.max_importance_ratio
        if not self.delay_actor:
            # In log space: the exponential of a large number is infinite, and so is its gradient.
            return (log_ratio if limit is None else log_ratio.clamp(max=math.log(limit))).exp(), None
        target = self.target_or_online("actor_network")
        with torch.no_grad():
            inputs = read_inputs(target, batch, type(self).__name__)
            distribution = distribution_on_tensors(target, inputs, batch.batch_size)
            log_prob = action_log_prob(distribution, batch, self.read(batch, "action"))
            log_weight = self._log_ratio(batch, log_prob, advantage)
            weight = (log_weight if limit is None else log_weight.clamp(max=math.log(limit))).exp()
        return (log_ratio - log_weight).exp(), weight


class ClipPPOLoss(PPOLoss):
    r"""PPO with the clipped surrogate.

    .. math:: L = -\min(r A, \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A) + c_v \, d(V, G) - c_e H

    Returns what :class:`PPOLoss` returns, and ``clip_fraction``: the share of ratios outside the clip range.

    Args:
        actor_network: see :class:`PPOLoss`.
        critic_network: see :class:`PPOLoss`.
        clip_epsilon: how far the ratio may move from 1; a pair (low, high) clips to [1 - low, 1 + high]. May be
            assigned later (schedules).
        clip_value: see :class:`PPOLoss`; True: the same as clip_epsilon.
        **options: of :class:`PPOLoss`.

    Schulman et al., 2017, eq. 7, arXiv 1707.06347.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module | None = None,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        clip_value: float | bool | None = None,
        **options: Any,
    ) -> None:
        follows_epsilon = clip_value is True
        number = None if isinstance(clip_value, bool) else clip_value
        super().__init__(actor_network, critic_network, clip_value=number, **options)
        if follows_epsilon and isinstance(clip_epsilon, (tuple, list)):
            raise SpecError("clip_value=True follows clip_epsilon, which is a pair here; give clip_value a number")
        self.add_scalar("clip_epsilon", clip_epsilon)
        self._limit_name = "clip_epsilon" if follows_epsilon else "clip_value"
        self.has_value_clip = follows_epsilon or number is not None

    def value_limit(self) -> Tensor:
        return self._buffers[self._limit_name]  # type: ignore[return-value]

    def objective(self, ratio: Tensor, advantage: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        low, high = self._clip_range()
        logs = {"clip_fraction": share_outside(masked_rows(ratio.detach(), mask), low, high)}
        return ppo.clipped_surrogate(ratio, advantage, low, high), logs

    def _clip_range(self) -> tuple[Tensor, Tensor] | tuple[float, float]:
        """The smallest and the largest ratio: numbers on the CPU, where reading a scalar costs less than using it."""
        epsilon = self._buffers["clip_epsilon"]
        assert epsilon is not None
        if epsilon.is_cpu and not torch.compiler.is_compiling():
            given = epsilon.tolist()
            below, above = given if isinstance(given, list) else (given, given)
            return 1 - below, 1 + above
        lower, upper = (epsilon, epsilon) if epsilon.ndim == 0 else epsilon.unbind()
        return 1 - lower, 1 + upper

    def objective_logs(self) -> list[str]:
        return ["clip_fraction"]
