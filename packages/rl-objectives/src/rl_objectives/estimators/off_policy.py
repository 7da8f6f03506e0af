"""What the off-policy estimators read beside rewards and values: how likely the actions were, then and now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key
from rl_core.losses.keys import entry, quoted
from rl_core.losses.networks import distribution_on_tensors, read_inputs
from rl_objectives.composite import action_log_prob, stored_log_prob
from rl_objectives.estimators.base import TrajectoryEstimator
from rl_objectives.estimators.trajectories import Steps, TrajectoryKeys
from rl_objectives.estimators.values import along_time

__all__ = ["OffPolicyEstimator", "OffPolicyKeys", "OffPolicySteps"]


@dataclass(frozen=True)
class OffPolicyKeys(TrajectoryKeys):
    """The entries of the off-policy estimators."""

    action: Key = field(default="action", metadata=entry(producer="The collecting policy writes it."))
    """Read: [*B, T, ...]."""
    sample_log_prob: Key = field(
        default="action_log_prob", metadata=entry(producer="The collecting policy writes it with return_log_prob=True.")
    )
    """Read: [*B, T], log-probability of the action under the policy that took it."""


@dataclass(frozen=True)
class OffPolicySteps(Steps):
    """A batch's tensors, each [*B, T, F], with log-probabilities of the stored actions."""

    log_pi: Tensor = field(kw_only=True)
    """Under the policy to evaluate."""
    log_mu: Tensor = field(kw_only=True)
    """Under the policy that took them."""


class OffPolicyEstimator(TrajectoryEstimator):
    """Base of the estimators of a policy from another policy's trajectories.

    The policy is evaluated at the *stored* action, never at one of its own, and without gradient.

    Args:
        actor_network: the policy to evaluate, a module with ``in_keys`` and ``get_dist``.
        gamma: discount per step.
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        **options: of :class:`TrajectoryEstimator`.

    Raises:
        SpecError: there is no policy, or it has no ``get_dist``.
    """

    needs_actor = True
    default_keys = OffPolicyKeys()

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        actor_network: nn.Module | None = None,
        value_network: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, value_network=value_network, **options)
        if actor_network is None or not callable(getattr(actor_network, "get_dist", None)):
            got = "None" if actor_network is None else type(actor_network).__name__
            raise SpecError(
                f"{type(self).__name__} needs actor_network=..., the policy to evaluate, with get_dist(tensordict), "
                f"such as ProbabilisticActor; got {got}"
            )
        self.actor_network = actor_network

    @property
    def in_keys(self) -> list[Key]:
        """The networks' inputs, now and under "next", the action and its log-probability, reward and end flags."""
        actor = [key for key in self.actor_network.in_keys if key not in super(OffPolicyEstimator, self).in_keys]  # type: ignore[union-attr]
        return [*actor, self.path("action"), self.path("sample_log_prob"), *super().in_keys]

    def read_steps(self, batch: TensorDictBase) -> OffPolicySteps:
        """The batch's steps, with the two log-probabilities of each action."""
        steps = self.read_signals(batch)
        action = batch.get(self.path("action"), None)
        if action is None:
            raise self.missing(batch, "action")
        actor, owner = self.actor_network, type(self).__name__
        with torch.no_grad(), along_time():
            distribution = distribution_on_tensors(actor, read_inputs(actor, batch, owner), batch.batch_size)
            log_pi = action_log_prob(distribution, batch, action)
        return self.with_log_probs(batch, steps, log_pi)

    def read_signals(self, batch: TensorDictBase) -> Steps:
        """The batch's steps without log-probabilities."""
        return super().read_steps(batch)

    def with_log_probs(self, batch: TensorDictBase, steps: Steps, log_pi: Tensor) -> OffPolicySteps:
        """The steps with the policy's log-probabilities, computed elsewhere, and those stored in the batch."""
        log_mu = stored_log_prob(batch, self.path("sample_log_prob"), self.path("action"))
        if log_mu is None:
            raise self.missing(batch, "sample_log_prob")
        return OffPolicySteps(
            **{name: getattr(steps, name) for name in Steps.__dataclass_fields__},
            log_pi=self._like_reward("policy's log-probability of the action", log_pi.detach(), steps.reward),
            log_mu=self._like_reward(quoted(self.path("sample_log_prob")), log_mu.detach(), steps.reward),
        )

    def _like_reward(self, name: str, log_prob: Tensor, reward: Tensor) -> Tensor:
        if log_prob.shape == reward.shape[:-1] and reward.shape[-1] == 1:
            log_prob = log_prob.unsqueeze(-1)
        if log_prob.shape != reward.shape:
            raise LossError(
                f"{type(self).__name__}: the {name} {list(log_prob.shape)} must be {list(reward.shape[:-1])}, one "
                f"number for each {quoted(self.path('reward'))} {list(reward.shape)}. A distribution over a vector of "
                "actions sums over it (Independent)."
            )
        return log_prob
