"""TrajectoryEstimator: reads a batch, evaluates the value network, hands tensors to a formula, writes the result."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import EstimatorKeys, ValueEstimator
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import missing_key
from rl_core.losses.networks import call_on_tensors, check_keyed, read_inputs
from rl_objectives.estimators.trajectories import ends_within_mask, raised_discount, time_axis
from rl_objectives.estimators.values import one_pass_values, two_pass_values, value_pair
from rl_objectives.functional.time_series import Discount

__all__ = ["Steps", "TrajectoryEstimator"]


@dataclass(frozen=True)
class Steps:
    """A batch's tensors, each [*B, T, F]."""

    gamma: Discount
    reward: Tensor
    done: Tensor
    terminated: Tensor
    time: int
    mask: Tensor | None


class TrajectoryEstimator(ValueEstimator):
    """Base of the estimators that need values of the observations before and after each step.

    Args:
        gamma: discount per step.
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        differentiable: keep the graph of the values; otherwise they are computed under ``no_grad``.
        skip_existing: take values that are in the batch already instead of computing them.
        shifted: take V of a next observation from the following row where both are equal: half the work, the same
            numbers. For networks that treat rows one by one.
        device: kept for compatibility; tensors stay where the batch is.
        time_dim: index of the time dimension in the batch size where none is named "time"; default the last.
        deactivate_vmap: evaluate the two observations by two calls instead of one on joined rows (recurrent networks).
    """

    default_keys: ClassVar[Any] = EstimatorKeys()
    default_hyperparameters: ClassVar[dict[str, Any]] = {"gamma": 0.99}

    def __init__(
        self,
        *,
        gamma: float | Tensor,
        value_network: nn.Module | None = None,
        differentiable: bool = False,
        skip_existing: bool | None = None,
        shifted: bool = False,
        device: torch.device | str | None = None,
        time_dim: int | None = None,
        deactivate_vmap: bool = False,
    ) -> None:
        super().__init__()
        if value_network is not None:
            check_keyed(value_network, type(self).__name__, "value_network")
        if shifted and deactivate_vmap:
            raise SpecError("shifted=True joins rows, deactivate_vmap=True keeps them apart: choose one")
        self.gamma = gamma
        self.value_network = value_network
        self.differentiable = differentiable
        self.skip_existing = bool(skip_existing)
        self.shifted = shifted
        self.time_dim = time_dim
        self.deactivate_vmap = deactivate_vmap

    @property
    def in_keys(self) -> list[Key]:
        """The network's inputs, now and under "next", then reward and end flags."""
        network = self.value_network
        inputs = [self.path("value")] if network is None else [as_key(key) for key in network.in_keys]  # type: ignore[union-attr]
        step = [self.path(name) for name in ("reward", "done", "terminated")]
        return [*inputs, *(join("next", key) for key in inputs), *step]

    @property
    def out_keys(self) -> list[Key]:
        """Advantage, value target, and the two values."""
        value = self.path("value")
        return [self.path("advantage"), self.path("value_target"), value, join("next", value)]

    @abstractmethod
    def estimate(self, steps: Steps, value: Tensor, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """The formula: ``(advantage, value_target)``."""

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write advantage, value target, value and next value into the batch.

        Args:
            tensordict: [*B, T].

        Returns:
            The same batch.

        Raises:
            KeyMissingError: an entry is absent.
            SpecError: two shapes differ, a flag is not bool, or there is no time dimension.
        """
        steps = self.read_steps(tensordict)
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()):
            value, next_value = self._values(tensordict, steps.time)
            advantage, target = self.estimate(steps, value, next_value)
        for key, result in zip(self.out_keys, (advantage, target, value, next_value), strict=True):
            tensordict.set(key, result)
        return tensordict

    def value_estimate(self, tensordict: TensorDictBase, *, next_value: Tensor | None = None) -> Tensor:
        steps = self.read_steps(tensordict)
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()):
            if next_value is None:
                value, next_value = self._values(tensordict, steps.time)
            else:
                value = self._single_value(tensordict, None)
            return self.estimate(steps, value, next_value)[1]

    def next_value(self, batch: TensorDictBase) -> Tensor:
        """V' alone, read or computed."""
        stored = batch.get(join("next", self.path("value")), None) if self.skip_existing else None
        return self._single_value(batch, "next") if stored is None else stored

    def read_steps(self, batch: TensorDictBase) -> Steps:
        """The batch's rewards, end flags and discount."""
        time = time_axis(batch, self.time_dim, type(self).__name__)
        reward, done = self.read(batch, "reward"), self.read(batch, "done")
        terminated = batch.get(self.path("terminated"), None)
        for name, flag in (("done", done), ("terminated", terminated)):
            if flag is not None and flag.dtype is not torch.bool:
                raise SpecError(f"{type(self).__name__}: {self.path(name)!r} must be a bool tensor; got {flag.dtype}")
        terminated = done if terminated is None else terminated
        mask = batch.get(self.path("mask"), None)
        gamma = raised_discount(self.gamma, batch.get(self.path("steps_to_next_obs"), None), reward)
        if isinstance(gamma, Tensor):
            gamma = gamma.to(reward.device)
        return Steps(gamma, reward, ends_within_mask(done, mask, time), terminated, time, mask)

    def _values(self, batch: TensorDictBase, time: int) -> tuple[Tensor, Tensor]:
        """(V, V') of the batch, read or computed."""
        key = self.path("value")
        network = self.value_network
        if network is None or self.skip_existing:
            value, next_value = batch.get(key, None), batch.get(join("next", key), None)
            value = self._single_value(batch, None) if value is None else value
            next_value = self._single_value(batch, "next") if next_value is None else next_value
            return value, next_value
        owner = type(self).__name__
        observation, following = read_inputs(network, batch, owner), read_inputs(network, batch, owner, under="next")
        if self.shifted:
            return one_pass_values(network, observation, following, key, batch.batch_size, time)
        evaluate = two_pass_values if self.deactivate_vmap else value_pair
        return evaluate(network, observation, following, key, batch.batch_size)

    def _single_value(self, batch: TensorDictBase, under: Key | None) -> Tensor:
        """V (or V', under "next") alone."""
        key, network = self.path("value"), self.value_network
        if network is None:
            full = key if under is None else join(under, key)
            value = batch.get(full, None)
            if value is None:
                cure = "There is no value_network to compute it: give one, or write the value before."
                raise missing_key(type(self).__name__, full, batch, cure)
            return value
        inputs = read_inputs(network, batch, type(self).__name__, under=under)
        return call_on_tensors(network, inputs, key, batch.batch_size)
