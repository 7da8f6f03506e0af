"""TrajectoryEstimator: reads a batch, evaluates the value network, hands tensors to a formula, writes the result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import missing_key, quoted
from rl_core.losses.networks import check_keyed, read_inputs
from rl_core.losses.sequences import sequence_outputs
from rl_core.policy_state import reads_sequences
from rl_objectives.estimators.trajectories import (
    Steps,
    TrajectoryKeys,
    ends_within_mask,
    raised_discount,
    time_axis,
)
from rl_objectives.estimators.values import (
    along_time,
    evaluator,
    one_pass_values,
    sequence_inputs,
    two_pass_values,
    value_pair,
)

__all__ = ["Steps", "TrajectoryEstimator"]


class TrajectoryEstimator(ValueEstimator):
    """Base of the estimators that need values of the observations before and after each step.

    Rows whose ``mask`` is False, and rows of agents whose ``agent_mask`` is False, get the advantage 0 and their own
    value as the target; what they hold reaches no other row.

    A value network that reads sequences (recurrent modules) runs along time, from the state stored at the first row, or
    zeros where the batch has none; it starts afresh where the batch says so, and the observation that ends an episode
    is read in the state that the episode led to.

    Args:
        gamma: discount per step; a number, or a tensor that broadcasts to the reward.
        value_network: a module with ``in_keys`` whose out_keys hold the value; None: read the values from the batch.
        differentiable: keep the graph of the values; otherwise they are computed under ``no_grad``.
        skip_existing: take values that are in the batch already instead of computing them.
        shifted: take V of a next observation from the following row where both are equal: half the work, the same
            numbers. For networks that treat rows one by one.
        device: kept for compatibility; tensors stay where the batch is.
        time_dim: index of the time dimension in the batch size where none is named "time"; default the last.
        deactivate_vmap: evaluate the two observations by two calls instead of one on joined rows.
        auto_reset_env: not supported, since it merges the two end flags: False.
        value_chunk_size: evaluate the network on at most so many indices of the first dimension at once; None: on all.
        num_chunks: instead, the number of such pieces.
        shifted_budget: kept for compatibility: each landing is evaluated, however many there are.
        group_key: entry [*B, T] or [*B, T, 1] of integers; what ``average_...`` standardises has moments of its own in
            each group. None: over all valid rows.

    Raises:
        SpecError: two options exclude each other, or one is out of range.
    """

    default_keys: ClassVar[Any] = TrajectoryKeys()
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
        auto_reset_env: bool = False,
        value_chunk_size: int | None = None,
        num_chunks: int | None = None,
        shifted_budget: int = 1,
        group_key: Key | None = None,
    ) -> None:
        super().__init__()
        if value_network is not None:
            check_keyed(value_network, type(self).__name__, "value_network")
        if shifted and deactivate_vmap:
            raise SpecError("shifted=True joins rows, deactivate_vmap=True keeps them apart: choose one")
        if auto_reset_env:
            raise SpecError(
                f"{type(self).__name__} takes no auto_reset_env=True, which treats an end by time limit as a true one. "
                'Give it both flags: ("next", "done") ends the trace, ("next", "terminated") stops bootstrapping.'
            )
        for name, number in (("value_chunk_size", value_chunk_size), ("num_chunks", num_chunks)):
            if number is not None and number < 1:
                raise SpecError(f"{name} is at least 1; got {number}")
        self.gamma = gamma
        self.value_network = value_network
        self.differentiable = differentiable
        self.skip_existing = bool(skip_existing)
        self.shifted = shifted
        self.time_dim = time_dim
        self.deactivate_vmap = deactivate_vmap
        self.value_chunk_size = value_chunk_size
        self.num_chunks = num_chunks
        self.group_key = None if group_key is None else as_key(group_key)

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

    def forward(
        self,
        tensordict: TensorDictBase,
        *,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
    ) -> TensorDictBase:
        """Write advantage, value target, value and next value into the batch.

        Args:
            tensordict: [*B, T].
            params: weights to use in place of the value network's own.
            target_params: weights for the next values; None: ``params``.

        Returns:
            The same batch.

        Raises:
            KeyMissingError: an entry is absent.
            SpecError: two shapes differ, a flag is not bool, or there is no time dimension.
        """
        steps = self.read_steps(tensordict)
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()), along_time():
            value, next_value = self._values(tensordict, steps.time, params, target_params)
            advantage, target = self.estimate(steps, value, next_value)
        for key, result in zip(self.out_keys, (advantage, target, value, next_value), strict=True):
            tensordict.set(key, result)
        return tensordict

    def value_estimate(
        self,
        tensordict: TensorDictBase,
        *,
        next_value: Tensor | None = None,
        target_params: TensorDictBase | None = None,
    ) -> Tensor:
        """The value target alone; nothing is written.

        Args:
            tensordict: [*B, T].
            next_value: values of the next observations, e.g. from a target network; computed where None.
            target_params: weights that compute them in place of the value network's own.
        """
        steps = self.read_steps(tensordict)
        with torch.set_grad_enabled(self.differentiable and torch.is_grad_enabled()), along_time():
            if next_value is None:
                value, next_value = self._values(tensordict, steps.time, None, target_params)
            else:
                value = self._single_value(tensordict, None)
            return self.estimate(steps, value, next_value)[1]

    def next_value(self, batch: TensorDictBase, target_params: TensorDictBase | None = None) -> Tensor:
        """V' alone, read or computed."""
        stored = batch.get(join("next", self.path("value")), None) if self.skip_existing else None
        return self._single_value(batch, "next", target_params) if stored is None else stored

    def values(self, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """(V, V') of a batch [*B, T], read or computed, with their graph where gradients are enabled."""
        with along_time():
            return self._values(batch, time_axis(batch, self.time_dim, type(self).__name__))

    def read_steps(self, batch: TensorDictBase) -> Steps:
        """The batch's rewards, end flags, masks and discount."""
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
        agents = self._agent_mask(batch, reward)
        ends = ends_within_mask(done, mask, time)
        groups = self._groups(batch)
        return Steps(gamma, reward, ends, terminated, time, mask, agent_mask=agents, groups=groups)

    # ---- masks and groups

    def _agent_mask(self, batch: TensorDictBase, reward: Tensor) -> Tensor | None:
        """The mask of agents, where the rewards are those of the agents that it counts."""
        if reward.ndim != batch.ndim + 2:
            return None
        mask = batch.get(self.path("agent_mask"), None)
        if mask is not None and (mask.dtype is not torch.bool or mask.shape != reward.shape[:-1]):
            raise LossError(
                f"{type(self).__name__}: {quoted(self.path('agent_mask'))} is bool with one entry per agent and row, "
                f"{list(reward.shape[:-1])} as {quoted(self.path('reward'))} is {list(reward.shape)}; got {mask.dtype} "
                f"{list(mask.shape)}"
            )
        return mask

    def _groups(self, batch: TensorDictBase) -> Tensor | None:
        if self.group_key is None:
            return None
        groups = batch.get(self.group_key, None)
        if groups is None:
            raise missing_key(type(self).__name__, self.group_key, batch, "It is the estimator's group_key.")
        return groups

    # ---- values

    def _values(
        self,
        batch: TensorDictBase,
        time: int,
        params: TensorDictBase | None = None,
        target_params: TensorDictBase | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(V, V') of the batch, read or computed."""
        key, network = self.path("value"), self.value_network
        target_params = params if target_params is None else target_params
        if network is None or self.skip_existing:
            value, next_value = batch.get(key, None), batch.get(join("next", key), None)
            value = self._single_value(batch, None, params) if value is None else value
            next_value = self._single_value(batch, "next", target_params) if next_value is None else next_value
            return value, next_value
        if reads_sequences(network):
            return self._sequence_values(network, batch, time)
        owner, size = type(self).__name__, batch.batch_size
        observation, following = read_inputs(network, batch, owner), read_inputs(network, batch, owner, under="next")
        evaluate = self._evaluator(network, params, size)
        if target_params is not params:
            return evaluate(observation, size), self._evaluator(network, target_params, size)(following, size)
        if self.shifted:
            return one_pass_values(evaluate, observation, following, size, time)
        return (two_pass_values if self.deactivate_vmap else value_pair)(evaluate, observation, following, size)

    def _evaluator(self, network: nn.Module, params: TensorDictBase | None, batch_size: torch.Size) -> Any:
        chunk = self.value_chunk_size
        if self.num_chunks is not None and batch_size:
            chunk = -(-batch_size[0] // self.num_chunks)
        return evaluator(network, self.path("value"), weights=_named_weights(params), chunk=chunk)

    def _single_value(self, batch: TensorDictBase, under: Key | None, params: TensorDictBase | None = None) -> Tensor:
        """V (or V', under "next") alone."""
        key, network, owner = self.path("value"), self.value_network, type(self).__name__
        if network is None:
            full = key if under is None else join(under, key)
            value = batch.get(full, None)
            if value is None:
                cure = "There is no value_network to compute it: give one, or write the value before."
                raise missing_key(owner, full, batch, cure)
            return value
        if reads_sequences(network):
            return self._sequence_values(network, batch, time_axis(batch, self.time_dim, owner))[under is not None]
        inputs = read_inputs(network, batch, owner, under=under)
        return self._evaluator(network, params, batch.batch_size)(inputs, batch.batch_size)

    def _sequence_values(self, network: nn.Module, batch: TensorDictBase, time: int) -> tuple[Tensor, Tensor]:
        """(V, V') of a network that reads sequences."""
        if time != batch.ndim - 1:
            raise SpecError(
                f"{type(self).__name__}: {type(network).__name__} reads sequences, whose time is the last batch "
                f"dimension; here it is {time} of {list(batch.batch_size)}. Transpose the batch."
            )
        observation, following = sequence_inputs(network, batch, type(self).__name__)
        ends = ends_within_mask(self.read(batch, "done"), batch.get(self.path("mask"), None), time)
        return sequence_outputs(network, observation, following, self.path("value"), batch.batch_size, ends)


def _named_weights(params: TensorDictBase | None) -> Mapping[str, Tensor] | None:
    """Weights by parameter name, e.g. ``"module.0.weight"``."""
    if params is None:
        return None
    return {str(name): weight for name, weight in params.flatten_keys(".").items()}
