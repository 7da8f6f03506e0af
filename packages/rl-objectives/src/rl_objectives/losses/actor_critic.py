"""What the on-policy losses share: an advantage, log-probabilities of stored actions, a critic, an entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, distribution_on_tensors, read_inputs
from rl_core.losses.reduction import masked_mean, masked_rows
from rl_objectives.composite import action_log_prob, total_over_parts, weighted_parts
from rl_objectives.estimators.gae import GAE
from rl_objectives.estimators.values import along_time
from rl_objectives.functional.distance import check_distance, distance_loss
from rl_objectives.functional.standardize import standardize
from rl_objectives.functional.statistics import explained_variance
from rl_objectives.losses.critic import clipped_value_distance, shared_weights
from rl_objectives.shapes import check_same_shape

__all__ = ["ActorCriticKeys", "ActorCriticLoss"]

_STEP = "The environment writes it; a collector keeps it."
_GAE = "A value estimator writes it: run GAE(...) on the batch before, or give the loss a critic_network."


@dataclass(frozen=True)
class ActorCriticKeys(LossKeys):
    """The entries of the on-policy losses."""

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


class ActorCriticLoss(LossModule):
    """Base of the losses of a stochastic policy and, mostly, a critic.

    Args:
        actor_network: a stochastic policy: a module with ``in_keys`` and ``get_dist``.
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
        functional: kept for compatibility; networks stay ordinary submodules.
        reduction: "mean", "sum" or "none" (per row).
        gamma: not here: ``loss.make_value_estimator(gamma=...)``.

    Raises:
        SpecError: an option is not admitted.
        TypeError: gamma is given.
    """

    default_keys: ClassVar[Any] = ActorCriticKeys()
    default_value_estimator: ClassVar[type[ValueEstimator] | str | None] = GAE

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
        delay_value: bool = False,
        functional: bool | None = None,
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
        if normalize_advantage and advantage_norm is not None:
            raise SpecError("normalize_advantage=True and advantage_norm=... both normalise: choose one")
        self.add_network("actor_network", actor_network, delayed=delay_actor)
        self.has_critic = critic_network is not None and critic_coeff is not None
        if critic_network is not None:
            self.add_network("critic_network", critic_network, delayed=delay_value)
        self.entropy_weights = dict(entropy_coeff) if isinstance(entropy_coeff, Mapping) else None
        self.add_scalar("entropy_coeff", 1.0 if isinstance(entropy_coeff, Mapping) else entropy_coeff)
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
        self.advantage_norm = advantage_norm
        self.separate_losses = separate_losses

    def default_in_keys(self) -> list[Key]:
        keys = [self.path(name) for name in self.step_names()]
        actor, critic = self._modules["actor_network"], self._modules.get("critic_network")
        keys += [as_key(key) for key in actor.in_keys]  # type: ignore[union-attr]
        if critic is not None:
            inputs = [as_key(key) for key in critic.in_keys]  # type: ignore[union-attr]
            keys += [*inputs, *(join("next", key) for key in inputs)]
        return list(dict.fromkeys(keys))

    def step_names(self) -> list[str]:
        """The names of the entries that are read beside the networks' inputs."""
        return ["action", "reward", "done", "terminated"]

    def value_limit(self) -> Tensor:
        """The largest change of a value, a scalar."""
        return self.clip_value

    # ---- the parts

    def _losses(self, batch: TensorDictBase) -> dict[str, Tensor]:
        with along_time():
            return super()._losses(batch)

    def _advantage(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, TensorDictBase]:
        """The advantage, ready to use, and the batch that holds what was estimated with it."""
        advantage = batch.get(self._paths["advantage"], None)
        if advantage is None:
            if "critic_network" not in self._modules and self.__dict__["_value_estimator"] is None:
                raise self.missing(batch, "advantage")
            # A shallow copy: the estimator writes into it, not into the caller's batch.
            batch = self.value_estimator(batch.copy())
            advantage = self.read(batch, "advantage")
        return self._normalized(advantage.detach(), mask), batch

    def _normalized(self, advantage: Tensor, mask: Tensor | None) -> Tensor:
        if self.normalize_advantage:
            rows = None if mask is None else mask.reshape(mask.shape + (1,) * (advantage.ndim - mask.ndim))
            return standardize(advantage, rows, self.normalize_advantage_exclude_dims)
        if self.advantage_norm is None:
            return advantage
        normalized = self.advantage_norm(advantage).detach()
        key = self._paths["advantage"]
        check_same_shape(type(self).__name__, (key, advantage), ("what advantage_norm returned", normalized))
        return normalized

    def _log_prob(self, batch: TensorDictBase) -> tuple[Tensor, Any]:
        """Log pi of the stored action under the policy as it is now, and its distribution."""
        action = self.read(batch, "action")
        if isinstance(action, Tensor) and action.requires_grad:
            raise self._stored_with_graph("action")
        actor = self._modules["actor_network"]
        assert actor is not None
        distribution = distribution_on_tensors(actor, read_inputs(actor, batch, type(self).__name__), batch.batch_size)
        return action_log_prob(distribution, batch, action), distribution

    def _like_advantage(self, key: Key, values: Tensor, advantage: Tensor) -> Tensor:
        """Values of the advantage's shape, [*B, 1], of values [*B].

        Raises:
            LossError: they fit neither.
        """
        if values.shape == advantage.shape[:-1] and advantage.shape[-1] == 1:
            values = values.unsqueeze(-1)
        check_same_shape(type(self).__name__, (key, values), (self._paths["advantage"], advantage))
        return values

    def _critic_loss(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance of the critic's value to its target per row, and logs about it."""
        target = self.read(batch, "value_target").detach()
        return self._value_distance(batch, self._value(batch), target, mask)

    def _value(self, batch: TensorDictBase) -> Tensor:
        """The critic's value, with its gradient."""
        critic, actor = self._modules["critic_network"], self._modules["actor_network"]
        assert critic is not None and actor is not None
        weights = (shared_weights(critic, actor) or None) if self.separate_losses else None
        inputs = read_inputs(critic, batch, type(self).__name__)
        return call_on_tensors(critic, inputs, self._paths["value"], batch.batch_size, weights=weights)

    def _value_distance(
        self, batch: TensorDictBase, value: Tensor, target: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        owner, key = type(self).__name__, self._paths["value"]
        check_same_shape(owner, (key, value), (self._paths["value_target"], target))
        seen = masked_rows(value.detach(), mask), masked_rows(target, mask)
        logs = {"explained_variance": explained_variance(*seen)}
        if not self.has_value_clip:
            return distance_loss(value, target, self.loss_critic_type), logs
        old = self.read(batch, "value").detach()
        check_same_shape(owner, (key, value), (key, old))
        distance, clipped = clipped_value_distance(value, old, target, self.value_limit(), self.loss_critic_type)
        logs["value_clip_fraction"] = masked_mean(clipped.to(value.dtype), mask)
        return distance, logs

    def _reduced(self, values: Tensor, mask: Tensor | None, scale: Tensor | float) -> Tensor:
        """Scaled values [*B, 1] under the reduction: one number, or [*B]."""
        if mask is None and self.reduction == "mean":
            return scale * values.mean()  # scaling one number costs less than scaling all of them
        return self.reduce(scale * values.squeeze(-1), mask)

    def _add_critic(self, losses: dict[str, Tensor], batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        """Put ``loss_critic`` into the losses and return the logs about it."""
        if not self.has_critic:
            return {}
        distance, logs = self._critic_loss(batch, mask)
        losses["loss_critic"] = self._reduced(distance, mask, self.critic_coeff)
        return logs

    def _add_entropy(self, losses: dict[str, Tensor], distribution: Any, log_prob: Tensor, mask: Tensor | None) -> None:
        """Put ``loss_entropy`` and the log ``entropy`` into the losses."""
        if not self.entropy_bonus:
            return
        entropy, weighted = self._entropy(distribution, log_prob), None
        if self.entropy_weights is not None:
            entropy, weighted = self._entropy_of_parts(distribution, log_prob)
        mean = masked_mean(entropy if weighted is None else entropy.detach(), mask)
        losses["entropy"] = mean.detach()
        if weighted is None and self.reduction == "mean":
            losses["loss_entropy"] = -self.entropy_coeff * mean
        else:
            weighted = entropy if weighted is None else weighted
            losses["loss_entropy"] = self._reduced(weighted.unsqueeze(-1), mask, -self.entropy_coeff)

    def _entropy(self, distribution: Any, log_prob: Tensor) -> Tensor:
        """The entropy per row: in closed form, else -log pi of fresh samples."""
        try:
            entropy = distribution.entropy()
        except NotImplementedError:
            entropy = -sampled_log_prob(distribution, self.samples_mc_entropy).mean(0)
        if not isinstance(entropy, Tensor):
            entropy = total_over_parts(entropy, log_prob.ndim)
        if entropy.shape != log_prob.shape:
            raise LossError(
                f"{type(self).__name__}: the policy's entropy {list(entropy.shape)} and log-probability "
                f"{list(log_prob.shape)} must have one shape"
            )
        return entropy

    def _entropy_of_parts(self, distribution: Any, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """The entropy of an action of several parts, and its sum weighted by part."""
        parts = distribution.entropy()
        if not isinstance(parts, TensorDictBase) or self.entropy_weights is None:
            raise SpecError(
                f"{type(self).__name__}: entropy_coeff is a dict, for the parts of a CompositeDistribution's action; "
                f"this policy's is a {type(distribution).__name__}, of one part. Give one number."
            )
        return total_over_parts(parts, log_prob.ndim), weighted_parts(parts, self.entropy_weights, log_prob.ndim)

    def _stored_with_graph(self, name: str) -> SpecError:
        return SpecError(
            f"{type(self).__name__}: the stored {quoted(self._paths[name])} requires grad, so the old policy would be "
            "differentiated. Collect under torch.no_grad() or detach it."
        )


def sampled_log_prob(distribution: Any, count: int) -> Tensor:
    """Log pi of fresh samples, [count, *B], with the gradient through the samples where there is one."""
    joint = getattr(distribution, "rsample_and_log_prob", None)
    if joint is not None:
        # Squashed distributions lose digits when they invert a saturated sample; those that offer both at once do not.
        return joint((count,))[1]
    samples = distribution.rsample((count,)) if distribution.has_rsample else distribution.sample((count,))
    return distribution.log_prob(samples)
