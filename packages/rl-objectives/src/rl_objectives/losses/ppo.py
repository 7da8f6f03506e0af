"""Proximal policy optimisation: the plain and the clipped surrogate objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, distribution_on_tensors, read_inputs
from rl_core.losses.reduction import masked_mean, masked_rows
from rl_objectives.estimators.gae import GAE
from rl_objectives.functional import ppo
from rl_objectives.functional.distance import check_distance, distance_loss
from rl_objectives.losses.critic import check_same_shape, clipped_value_distance, shared_weights

__all__ = ["ClipPPOLoss", "PPOKeys", "PPOLoss"]

_STEP = "The environment writes it; a collector keeps it."
_GAE = "A value estimator writes it: run GAE(...) on the batch before, or give the loss a critic_network."


@dataclass(frozen=True)
class PPOKeys(LossKeys):
    """The entries of the PPO losses."""

    action: Key = field(default="action", metadata=entry(producer="The collecting policy writes it."))
    """[*B, ...]."""
    sample_log_prob: Key = field(
        default="action_log_prob", metadata=entry(producer="The collecting policy writes it with return_log_prob=True.")
    )
    """[*B]: log-probability of the action under the policy that took it."""
    advantage: Key = field(default="advantage", metadata=entry(producer=_GAE))
    """[*B, 1]."""
    value_target: Key = field(default="value_target", metadata=entry(producer=_GAE))
    """[*B, 1]."""
    value: Key = field(
        default="state_value", metadata=entry(producer="A value estimator writes it: run GAE(...) on the batch before.")
    )
    """[*B, 1]: the critic's output; read from the batch for clip_value."""
    reward: Key = field(default="reward", metadata=entry(producer=_STEP, under_next=True))
    done: Key = field(default="done", metadata=entry(producer=_STEP, under_next=True))
    terminated: Key = field(default="terminated", metadata=entry(producer=_STEP, under_next=True))


class PPOLoss(LossModule):
    r"""The importance-weighted policy gradient with a critic and an entropy bonus.

    .. math:: L = -r A + c_v \, d(V, G) - c_e H, \qquad r = \exp(\log\pi(a|s) - \log\pi_{old}(a|s))

    Returns ``loss_objective``, ``loss_critic``, ``loss_entropy`` (add them up) and the detached logs ``entropy``,
    ``kl_approx``, ``ESS`` (share of the batch), ``max_ratio``, ``mean_ratio``, ``explained_variance``.
    Where the batch has no advantage, the loss's value estimator (GAE by default) computes it on the fly.

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``.
        critic_network: a module with ``in_keys`` that outputs the state's value; None: no critic loss.
        entropy_bonus: whether to add ``loss_entropy``.
        samples_mc_entropy: samples that estimate the entropy where the distribution has no closed form.
        entropy_coeff: weight of the entropy, may be assigned later (schedules).
        critic_coeff: weight of the critic's loss, likewise; None: no critic loss.
        loss_critic_type: "smooth_l1", "l2" or "l1".
        normalize_advantage: standardise the advantage over the batch, once, before anything uses it.
        normalize_advantage_exclude_dims: dimensions of the advantage with moments of their own, e.g. (-2,) for agents.
        clip_value: largest change of the value since collection; None: unlimited.
        separate_losses: keep the critic's loss from moving weights that the actor shares.
        reduction: "mean", "sum" or "none" (per row).
        gamma: not here: ``loss.make_value_estimator(gamma=...)``.

    Raises:
        SpecError: an option is not admitted.
        TypeError: gamma is given.

    Schulman et al., 2017, Proximal Policy Optimization Algorithms, eq. 6 and 9, arXiv 1707.06347.
    """

    default_keys: ClassVar[Any] = PPOKeys()
    default_value_estimator: ClassVar[type[ValueEstimator] | str | None] = GAE

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module | None = None,
        *,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: float = 0.01,
        critic_coeff: float | None = 1.0,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
        normalize_advantage_exclude_dims: Sequence[int] = (),
        clip_value: float | None = None,
        separate_losses: bool = False,
        reduction: str = "mean",
        gamma: float | None = None,
    ) -> None:
        if gamma is not None:
            raise TypeError(
                f"{type(self).__name__} takes no gamma: it belongs to the value estimator. "
                f"Call loss.make_value_estimator(gamma={gamma}, lmbda=...) or run GAE(gamma={gamma}, ...) on the batch."
            )
        super().__init__(reduction=reduction)
        if not callable(getattr(actor_network, "get_dist", None)):
            raise SpecError(
                f"{type(self).__name__} needs an actor_network with get_dist(tensordict), such as ProbabilisticActor; "
                f"got {type(actor_network).__name__}"
            )
        self.add_network("actor_network", actor_network)
        self.has_critic = critic_network is not None and critic_coeff is not None
        if critic_network is not None:
            self.add_network("critic_network", critic_network)
        self.add_scalar("entropy_coeff", entropy_coeff)
        if critic_coeff is not None:
            self.add_scalar("critic_coeff", critic_coeff)
        self.has_value_clip = clip_value is not None
        if clip_value is not None:
            self.add_scalar("clip_value", clip_value)
        self.entropy_bonus = entropy_bonus
        self.samples_mc_entropy = samples_mc_entropy
        self.loss_critic_type = check_distance(loss_critic_type)
        self.normalize_advantage = normalize_advantage
        self.normalize_advantage_exclude_dims = tuple(normalize_advantage_exclude_dims)
        self.separate_losses = separate_losses

    def default_in_keys(self) -> list[Key]:
        names = ("action", "sample_log_prob", "reward", "done", "terminated")
        keys = [self.path(name) for name in names]
        actor, critic = self._modules["actor_network"], self._modules.get("critic_network")
        keys += [as_key(key) for key in actor.in_keys]  # type: ignore[union-attr]
        if critic is not None:
            inputs = [as_key(key) for key in critic.in_keys]  # type: ignore[union-attr]
            keys += [*inputs, *(join("next", key) for key in inputs)]
        return list(dict.fromkeys(keys))

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
        ratio = log_ratio.exp()
        gain, objective_logs = self.objective(ratio, advantage, mask)
        losses = {"loss_objective": self.reduce(-gain.squeeze(-1), mask)}
        critic_logs: dict[str, Tensor] = {}
        if self.has_critic:
            distance, critic_logs = self._critic_loss(batch, mask)
            losses["loss_critic"] = self.reduce(self.critic_coeff * distance.squeeze(-1), mask)
        if self.entropy_bonus:
            entropy = self._entropy(distribution, log_prob)
            losses["loss_entropy"] = self.reduce(-self.entropy_coeff * entropy, mask)
            losses["entropy"] = masked_mean(entropy.detach(), mask)
        return {**losses, **objective_logs, **_ratio_logs(log_ratio.detach(), ratio.detach(), mask), **critic_logs}

    def objective(self, ratio: Tensor, advantage: Tensor, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """What is maximised, per row, and logs about it."""
        return ratio * advantage, {}

    def objective_logs(self) -> list[str]:
        """The names of the logs that :meth:`objective` returns."""
        return []

    def value_limit(self) -> Tensor:
        """The largest change of a value, a scalar."""
        return self.clip_value

    # ---- the parts, in the order of compute

    def _advantage(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, TensorDictBase]:
        """The advantage, ready to use, and the batch that holds what was estimated with it."""
        advantage = batch.get(self._paths["advantage"], None)
        if advantage is None:
            if "critic_network" not in self._modules and self.__dict__["_value_estimator"] is None:
                raise self.missing(batch, "advantage")
            # A shallow copy: the estimator writes into it, not into the caller's batch.
            batch = self.value_estimator(batch.copy())
            advantage = self.read(batch, "advantage")
        advantage = advantage.detach()
        if self.normalize_advantage:
            rows = None if mask is None else mask.reshape(mask.shape + (1,) * (advantage.ndim - mask.ndim))
            advantage = ppo.standardize(advantage, rows, self.normalize_advantage_exclude_dims)
        return advantage, batch

    def _log_prob(self, batch: TensorDictBase) -> tuple[Tensor, Any]:
        """Log pi of the stored action under the policy as it is now, and its distribution."""
        action = self.read(batch, "action")
        if action.requires_grad:
            raise self._stored_with_graph("action")
        actor = self._modules["actor_network"]
        assert actor is not None
        distribution = distribution_on_tensors(actor, read_inputs(actor, batch, type(self).__name__), batch.batch_size)
        return distribution.log_prob(action), distribution

    def _log_ratio(self, batch: TensorDictBase, log_prob: Tensor, advantage: Tensor) -> Tensor:
        """Log r, of the advantage's shape."""
        old = self.read(batch, "sample_log_prob")
        if old.requires_grad:
            raise self._stored_with_graph("sample_log_prob")
        owner, key = type(self).__name__, self._paths["sample_log_prob"]
        if log_prob.shape != old.shape:
            raise SpecError(
                f"{owner}: the policy gives {quoted(self._paths['action'])} log-probabilities {list(log_prob.shape)}, "
                f"but {quoted(key)} has {list(old.shape)}; they must have one shape. A distribution over a vector of "
                "actions sums over it (Independent)."
            )
        log_ratio = log_prob - old
        if log_ratio.shape == advantage.shape[:-1] and advantage.shape[-1] == 1:
            log_ratio = log_ratio.unsqueeze(-1)
        check_same_shape(owner, (key, log_ratio), (self._paths["advantage"], advantage))
        return log_ratio

    def _critic_loss(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance of the critic's value to its target per row, and logs about it."""
        owner, key = type(self).__name__, self._paths["value"]
        target = self.read(batch, "value_target").detach()
        critic, actor = self._modules["critic_network"], self._modules["actor_network"]
        assert critic is not None and actor is not None
        weights = (shared_weights(critic, actor) or None) if self.separate_losses else None
        value = call_on_tensors(critic, read_inputs(critic, batch, owner), key, batch.batch_size, weights=weights)
        check_same_shape(owner, (key, value), (self._paths["value_target"], target))
        seen = masked_rows(value.detach(), mask), masked_rows(target, mask)
        logs = {"explained_variance": ppo.explained_variance(*seen)}
        if not self.has_value_clip:
            return distance_loss(value, target, self.loss_critic_type), logs
        old = self.read(batch, "value").detach()
        check_same_shape(owner, (key, value), (key, old))
        distance, clipped = clipped_value_distance(value, old, target, self.value_limit(), self.loss_critic_type)
        logs["value_clip_fraction"] = masked_mean(clipped.to(value.dtype), mask)
        return distance, logs

    def _entropy(self, distribution: Any, log_prob: Tensor) -> Tensor:
        """The entropy per row: in closed form, else -log pi of fresh samples."""
        try:
            entropy = distribution.entropy()
        except NotImplementedError:
            entropy = -_sampled_log_prob(distribution, self.samples_mc_entropy).mean(0)
        if entropy.shape != log_prob.shape:
            raise SpecError(
                f"{type(self).__name__}: the policy's entropy {list(entropy.shape)} and log-probability "
                f"{list(log_prob.shape)} must have one shape"
            )
        return entropy

    def _stored_with_graph(self, name: str) -> SpecError:
        return SpecError(
            f"{type(self).__name__}: the stored {quoted(self._paths[name])} requires grad, so the old policy would be "
            "differentiated. Collect under torch.no_grad() or detach it."
        )


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
        epsilon = self._buffers["clip_epsilon"]
        assert epsilon is not None
        below, above = (epsilon, epsilon) if epsilon.ndim == 0 else epsilon.unbind()
        low, high = 1 - below, 1 + above
        fixed = ratio.detach()
        outside = (fixed < low) | (fixed > high)
        logs = {"clip_fraction": masked_mean(outside.to(ratio.dtype), mask)}
        return ppo.clipped_surrogate(ratio, advantage, low, high), logs

    def objective_logs(self) -> list[str]:
        return ["clip_fraction"]


def _sampled_log_prob(distribution: Any, count: int) -> Tensor:
    """Log pi of fresh samples, [count, *B], with the gradient through the samples where there is one."""
    joint = getattr(distribution, "rsample_and_log_prob", None)
    if joint is not None:
        # Squashed distributions lose digits when they invert a saturated sample; those that offer both at once do not.
        return joint((count,))[1]
    samples = distribution.rsample((count,)) if distribution.has_rsample else distribution.sample((count,))
    return distribution.log_prob(samples)


@torch.no_grad()
def _ratio_logs(log_ratio: Tensor, ratio: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """How far the policy has moved from the one that collected the batch."""
    log_ratio, ratio = masked_rows(log_ratio, mask), masked_rows(ratio, mask)
    return {
        "kl_approx": -log_ratio.mean(),
        "ESS": ppo.effective_sample_size(log_ratio),
        "max_ratio": ratio.max(),
        "mean_ratio": ratio.mean(),
    }
