"""GAE as a module: reads a batch of trajectories, writes advantages and value targets."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_objectives.estimators.base import TrajectoryEstimator
from rl_objectives.estimators.trajectories import Steps, trailing
from rl_objectives.functional.gae import generalized_advantage_estimate
from rl_objectives.functional.masked_gae import masked_generalized_advantage_estimate

__all__ = ["GAE"]


class GAE(TrajectoryEstimator):
    r"""Generalised advantage estimation.

    .. math::
        \delta_t = r_t + \gamma (1 - m_t) V'_t - V_t, \qquad A_t = \delta_t + \gamma \lambda (1 - d_t) A_{t+1}

    Writes ``advantage``, ``value_target`` (= A + V), ``state_value`` and ``("next", "state_value")``, each [*B, T, 1].

    Args:
        gamma: discount per step.
        lmbda: trace decay, in [0, 1].
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        average_gae: standardise the advantage over valid rows, or within each group of them (``group_key``), with a
            divisor of at least 1e-4; the target stays raw.
        vectorized: kept for compatibility; the one implementation is compiled on the CPU and vectorised elsewhere.
        **options: of :class:`TrajectoryEstimator`.

    Raises:
        SpecError: lmbda is outside [0, 1].

    Schulman et al., 2015, arXiv 1506.02438.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from tensordict.nn import TensorDictModule
    >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
    >>> step = {"observation": torch.randn(2, 5, 3), "reward": torch.ones(2, 5, 1)}
    >>> ends = {name: torch.zeros(2, 5, 1, dtype=torch.bool) for name in ("done", "terminated")}
    >>> batch = TensorDict({"observation": torch.randn(2, 5, 3), "next": {**step, **ends}}, batch_size=[2, 5])
    >>> GAE(gamma=0.99, lmbda=0.95, value_network=critic)(batch)["advantage"].shape
    torch.Size([2, 5, 1])
    """

    call_me: ClassVar[str] = "gae"
    default_hyperparameters: ClassVar[dict[str, Any]] = {"gamma": 0.99, "lmbda": 0.95}

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        lmbda: float | Tensor,
        value_network: nn.Module | None = None,
        average_gae: bool = False,
        vectorized: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(gamma=gamma, value_network=value_network, **options)
        if not isinstance(lmbda, Tensor) and not 0.0 <= lmbda <= 1.0:
            raise SpecError(f"lmbda lies in [0, 1]; got {lmbda}")
        self.lmbda = lmbda
        self.average_gae = average_gae

    def estimate(self, steps: Steps, value: Tensor, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """The formula, standardised if asked."""
        lmbda = self.lmbda.to(steps.reward.device) if isinstance(self.lmbda, Tensor) else self.lmbda
        series = (value, next_value, steps.reward, steps.done, steps.terminated)
        if steps.agent_mask is None:
            advantage, target = generalized_advantage_estimate(steps.gamma, lmbda, *series, time_dim=steps.time)
        else:
            acts, exists = trailing(steps.agent_mask, value.ndim), trailing(steps.mask, value.ndim)
            assert acts is not None
            advantage, target = masked_generalized_advantage_estimate(
                steps.gamma, lmbda, *series, acts, exists, time_dim=steps.time
            )
        if self.average_gae:
            advantage = steps.standardized(advantage)
        return steps.neutral(advantage, target, value)
