"""Retrace(lambda) as a module: action-value targets from trajectories that any other policy collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import entry, quoted
from rl_core.losses.networks import distribution_on_tensors, read_inputs
from rl_objectives.estimators.off_policy import OffPolicyEstimator, OffPolicyKeys, OffPolicySteps
from rl_objectives.estimators.trajectories import Steps
from rl_objectives.functional.retrace import retrace_return_estimate
from rl_objectives.functional.vtrace import check_threshold

__all__ = ["RetraceEstimator", "RetraceKeys"]


@dataclass(frozen=True)
class RetraceKeys(OffPolicyKeys):
    """The entries of :class:`RetraceEstimator`."""

    value: Key = field(
        default="state_action_value", metadata=entry(producer="A value network writes it: give value_network=...")
    )
    """Written: Q of the stored action [*B, T, 1], and under "next" the expectation of Q in the next state."""


class RetraceEstimator(OffPolicyEstimator):
    r"""Retrace targets of the values of the stored actions.

    .. math::
        G_t = r_t + \gamma (1 - m_t) [V'_t + (1 - d_t) c_{t+1} (G_{t+1} - Q_{t+1})], \qquad
        c_t = \lambda \min(\bar c, \pi / \mu)

    V' is the mean of Q over actions that the policy draws in the next state. Writes ``value_target`` (= G),
    ``advantage`` (= G - Q), ``state_action_value`` (= Q) and ``("next", "state_action_value")`` (= V').

    Args:
        gamma: discount per step.
        lmbda: trace decay, in [0, 1].
        actor_network: the policy to evaluate, a module with ``in_keys`` and ``get_dist``. A loss gives its own.
        value_network: a module that reads the action beside the observation and writes its value.
        c_thresh: the largest importance weight.
        num_samples: how many actions are drawn in each next state.
        **options: of :class:`TrajectoryEstimator`.

    Raises:
        SpecError: there is no policy, the value network does not read the action, or a number is out of range.

    Munos et al., 2016, Safe and Efficient Off-Policy Reinforcement Learning, eq. 3 and 4, arXiv 1606.02647.
    """

    default_keys = RetraceKeys()
    default_hyperparameters: ClassVar[dict[str, Any]] = {"gamma": 0.99, "lmbda": 1.0}

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        lmbda: float | Tensor = 1.0,
        actor_network: nn.Module | None = None,
        value_network: nn.Module | None = None,
        c_thresh: float = 1.0,
        num_samples: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, actor_network=actor_network, value_network=value_network, **options)
        if not isinstance(lmbda, Tensor) and not 0.0 <= lmbda <= 1.0:
            raise SpecError(f"lmbda lies in [0, 1]; got {lmbda}")
        if num_samples < 1:
            raise SpecError(f"num_samples is at least 1; got {num_samples}")
        self.lmbda, self.c_thresh, self.num_samples = lmbda, check_threshold("c_thresh", c_thresh), num_samples

    @property
    def in_keys(self) -> list[Key]:
        """The networks' inputs, now and under "next", the action and its log-probability, reward and end flags."""
        return [key for key in dict.fromkeys(super().in_keys) if key != join("next", self.path("action"))]

    def read_steps(self, batch: TensorDictBase) -> OffPolicySteps:
        """The batch's steps, with the two log-probabilities of each action."""
        steps = super().read_steps(batch)
        if steps.agent_mask is not None and not bool(steps.agent_mask.all()):
            raise SpecError(
                f"{type(self).__name__} takes agents that act in every row; {quoted(self.path('agent_mask'))} says "
                "that some do not. Take the rows of each agent as a trajectory of its own."
            )
        return steps

    def estimate(self, steps: Steps, value: Tensor, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """The formula."""
        assert isinstance(steps, OffPolicySteps)
        lmbda = self.lmbda.to(steps.reward.device) if isinstance(self.lmbda, Tensor) else self.lmbda
        log_probs, ends = (steps.log_pi, steps.log_mu), (steps.done, steps.terminated)
        target = retrace_return_estimate(
            steps.gamma,
            lmbda,
            *log_probs,
            value,
            next_value,
            steps.reward,
            *ends,
            c_thresh=self.c_thresh,
            time_dim=steps.time,
        )
        return steps.neutral(target - value, target, value)

    def _single_value(self, batch: TensorDictBase, under: Key | None, params: TensorDictBase | None = None) -> Tensor:
        """Q of the stored action, or the expectation of Q in the next state."""
        network, owner = self.value_network, type(self).__name__
        if under is None or network is None:
            return super()._single_value(batch, under, params)
        action_key = self.path("action")
        keys = [as_key(key) for key in network.in_keys]  # type: ignore[union-attr]
        if action_key not in keys:
            raise SpecError(
                f"{owner} needs a value_network that reads the action {quoted(action_key)}; its in_keys are {keys}"
            )
        actor, following = self.actor_network, batch.get("next")
        with torch.no_grad():
            inputs = read_inputs(actor, batch, owner, under="next")
            actions = distribution_on_tensors(actor, inputs, batch.batch_size).sample((self.num_samples,))
        evaluate = self._evaluator(network, params, batch.batch_size)
        total = None
        for action in actions:
            there = following.copy().set(action_key, action)
            value = evaluate(read_inputs(network, there, owner), batch.batch_size)
            total = value if total is None else total + value
        assert total is not None
        return total / self.num_samples

    def _values(
        self,
        batch: TensorDictBase,
        time: int,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(Q, V') of the batch, read or computed."""
        key = self.path("value")
        stored = self.value_network is None or self.skip_existing
        value, following = (batch.get(key, None), batch.get(join("next", key), None)) if stored else (None, None)
        target_params = params if target_params is None else target_params
        value = self._single_value(batch, None, params) if value is None else value
        return value, self._single_value(batch, "next", target_params) if following is None else following
