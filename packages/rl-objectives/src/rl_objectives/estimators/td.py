"""The temporal-difference estimators as modules: one step, all steps, and the mixture."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_objectives.estimators.base import TrajectoryEstimator
from rl_objectives.estimators.trajectories import Steps, trailing
from rl_objectives.estimators.values import along_time
from rl_objectives.functional.masked_td import masked_td_lambda_return_estimate
from rl_objectives.functional.td import td0_return_estimate, td_lambda_return_estimate
from rl_objectives.functional.time_series import Discount
from rl_objectives.shapes import check_same_shape

__all__ = ["TD0Estimator", "TD1Estimator", "TDLambdaEstimator"]


class _ReturnEstimator(TrajectoryEstimator):
    """An estimator whose target is a return and whose advantage is that return less the value."""

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        value_network: nn.Module | None = None,
        average_rewards: bool = False,
        vectorized: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, value_network=value_network, **options)
        self.average_rewards = average_rewards

    @abstractmethod
    def returns(self, steps: Steps, next_value: Tensor) -> Tensor:
        """The formula."""

    def trace_decay(self, steps: Steps) -> Discount | None:
        """Lambda, where a target depends on later rows; None: each row stands for itself."""
        return None

    def estimate(self, steps: Steps, value: Tensor, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """The return less the value, and the return."""
        check_same_shape(type(self).__name__, (self.path("value"), value), (self.path("reward"), steps.reward))
        decay = self.trace_decay(steps)
        if steps.agent_mask is None or decay is None:
            target = self.returns(steps, next_value)
        else:
            series = (value, next_value, steps.reward, steps.done, steps.terminated)
            acts, exists = trailing(steps.agent_mask, value.ndim), trailing(steps.mask, value.ndim)
            assert acts is not None
            target = masked_td_lambda_return_estimate(steps.gamma, decay, *series, acts, exists, time_dim=steps.time)
        return steps.neutral(target - value, target, value)

    def value_estimate(
        self,
        tensordict: TensorDictBase,
        *,
        next_value: Tensor | None = None,
        target_params: TensorDictBase | None = None,
    ) -> Tensor:
        """The value target alone; nothing is written, and the values of the steps themselves are not computed."""
        steps = self.read_steps(tensordict)
        if steps.agent_mask is not None and self.trace_decay(steps) is not None:
            return super().value_estimate(tensordict, next_value=next_value, target_params=target_params)
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()), along_time():
            following = self.next_value(tensordict, target_params) if next_value is None else next_value
            return self.returns(steps, following)

    def read_steps(self, batch: TensorDictBase) -> Steps:
        """The batch's steps, with the reward standardised over valid rows if asked."""
        steps = super().read_steps(batch)
        return replace(steps, reward=steps.standardized(steps.reward)) if self.average_rewards else steps


class TD0Estimator(_ReturnEstimator):
    """One-step targets ``r + gamma (1 - m) V'``; the batch need not be in time order.

    Args:
        gamma: discount per step.
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        average_rewards: standardise rewards over the batch first.
        vectorized: kept for compatibility.
        **options: of :class:`TrajectoryEstimator`.
    """

    def returns(self, steps: Steps, next_value: Tensor) -> Tensor:
        return td0_return_estimate(steps.gamma, next_value, steps.reward, steps.terminated)


class TD1Estimator(_ReturnEstimator):
    """Targets that sum all rewards to come, with V' for the rest at a truncation and at the batch's last step.

    Args:
        gamma: discount per step.
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        average_rewards: standardise rewards over the batch first.
        vectorized: kept for compatibility.
        **options: of :class:`TrajectoryEstimator`.
    """

    def trace_decay(self, steps: Steps) -> Discount | None:
        return 1.0

    def returns(self, steps: Steps, next_value: Tensor) -> Tensor:
        return td_lambda_return_estimate(
            steps.gamma, 1.0, next_value, steps.reward, steps.done, steps.terminated, time_dim=steps.time
        )


class TDLambdaEstimator(_ReturnEstimator):
    """Lambda-returns as targets.

    Args:
        gamma: discount per step.
        lmbda: mixture weight, in [0, 1].
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        average_rewards: standardise rewards over the batch first.
        vectorized: kept for compatibility.
        **options: of :class:`TrajectoryEstimator`.

    Raises:
        SpecError: lmbda is outside [0, 1].
    """

    default_hyperparameters: ClassVar[dict[str, Any]] = {"gamma": 0.99, "lmbda": 0.95}

    def __init__(self, *, gamma: float | Tensor, lmbda: float | Tensor, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        if not isinstance(lmbda, Tensor) and not 0.0 <= lmbda <= 1.0:
            raise SpecError(f"lmbda lies in [0, 1]; got {lmbda}")
        self.lmbda = lmbda

    def trace_decay(self, steps: Steps) -> Discount | None:
        return self.lmbda.to(steps.reward.device) if isinstance(self.lmbda, Tensor) else self.lmbda

    def returns(self, steps: Steps, next_value: Tensor) -> Tensor:
        lmbda = self.trace_decay(steps)
        assert lmbda is not None
        return td_lambda_return_estimate(
            steps.gamma, lmbda, next_value, steps.reward, steps.done, steps.terminated, time_dim=steps.time
        )
