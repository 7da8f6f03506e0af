"""Imagined trajectories: what the actor losses of world models share, and the pair (losses, data) that they return."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.exploration import ExplorationType, set_exploration_type
from rl_core.keys import Key, as_path, flat_name
from rl_core.losses.keys import quoted
from rl_core.losses.module import LossModule
from rl_core.losses.networks import call_on_tensors, check_keyed, read_inputs
from rl_objectives.gradients import hold_out_parameters

__all__ = ["ImaginedEnvironment", "LossWithData", "check_horizon", "frozen", "imagine", "output_at"]


class ImaginedEnvironment(Protocol):
    """What an actor loss asks of an environment that steps a world model."""

    world_model: Any
    done_keys: Any

    def rollout(self, max_steps: int, policy: Any = None, **options: Any) -> TensorDictBase:
        """Steps from ``tensordict`` on, without a reset where ``auto_reset=False``."""
        ...


class LossWithData(LossModule):
    """A loss that also returns what it computed on the way: ``losses, data = loss(batch)``.

    The data is for the next loss in the chain model, actor, value; it holds no graph. Called with keyword tensors, the
    losses alone come back, as a tuple.
    """

    @abstractmethod
    def compute_with_data(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], TensorDictBase]:
        """The losses and logs of a batch, and the data; the batch is left alone."""

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch."""
        return self.compute_with_data(batch)[0]

    def forward(self, tensordict: TensorDictBase | None = None, **tensors: Tensor) -> Any:
        """The losses of a batch, and the data that they were computed from.

        Args:
            tensordict: the batch.
            **tensors: instead of a batch, one tensor per key, named by joining the key with "_".

        Returns:
            A TensorDict with the out_keys, and the data; called with keywords, a tuple in the order of out_keys.
        """
        if tensordict is None or tensors:
            return super().forward(tensordict, **tensors)
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            values, data = self.compute_with_data(tensordict)
        if self._selected is not None:
            values = {flat_name(key): values[flat_name(key)] for key in self._selected}
        return TensorDict(values, batch_size=[]), data

    def _keep(self, name: str, network: Any) -> None:
        """Hold a network that this loss evaluates and never moves: neither its parameters nor its state are listed."""
        if isinstance(network, nn.Module):
            check_keyed(network, type(self).__name__, name)
        self.__dict__[name] = network


def check_horizon(horizon: int) -> int:
    """The number of imagined steps itself.

    Raises:
        SpecError: it is below 1.
    """
    if horizon < 1:
        raise SpecError(f"imagination_horizon is at least 1; got {horizon}")
    return horizon


@contextmanager
def frozen(*networks: Any) -> Iterator[None]:
    """Inside, no parameter of these networks requires a gradient; gradients flow through them all the same."""
    modules = [network for network in networks if isinstance(network, nn.Module)]
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(hold_out_parameters(module.parameters()))
        yield


def imagine(
    env: ImaginedEnvironment, actor: nn.Module, batch: TensorDictBase, keys: Sequence[Key], horizon: int, loss: Any
) -> TensorDictBase:
    """Let the actor act in a world model, from every state of a batch.

    Args:
        env: steps the world model.
        actor: a policy on its states; it draws its actions.
        batch: holds the states [*B] to start from.
        keys: the state's entries.
        horizon: H.
        loss: who asks, for errors; its mask of valid rows goes along.

    Returns:
        [*B, H]: at the root the states and actions, under "next" the states and rewards that follow.

    Raises:
        KeyMissingError: the batch lacks a part of the state.
        LossError: the environment ended an episode on the way.
    """
    start = TensorDict({}, batch_size=batch.batch_size, device=batch.device)
    for key in keys:
        value = batch.get(key, None)
        if value is None:
            raise loss.missing(batch, _name_of(loss, key))
        start.set(key, value.detach())
    for key in env.done_keys:  # nothing has ended where imagination starts
        start.set(key, torch.zeros(*batch.batch_size, 1, dtype=torch.bool, device=value.device))
    with set_exploration_type(ExplorationType.RANDOM):
        data = env.rollout(horizon, actor, auto_reset=False, tensordict=start)
    if data.batch_size != (*batch.batch_size, horizon):
        raise LossError(
            f"{type(loss).__name__} asked {type(env).__name__} for {horizon} steps from {list(batch.batch_size)} states"
            f" and got {list(data.batch_size)}: a world model ends no episode; predict continuation instead"
        )
    mask = loss.valid_rows(batch)
    if mask is not None:
        data.set(loss.path("mask"), mask.unsqueeze(-1).expand(data.batch_size))
    return data


def output_at(network: nn.Module, data: TensorDictBase, key: Key, owner: str, *, ahead: bool = False) -> Tensor:
    """One output of a network [*B, H, 1] at the states of imagined steps, or at those that they lead to.

    Raises:
        LossError: the output does not have one number per step.
    """
    inputs = read_inputs(network, data, owner, under="next" if ahead else None)
    value = call_on_tensors(network, inputs, key, data.batch_size)
    if value.shape != (*data.batch_size, 1):
        raise LossError(
            f"{owner}: {quoted(key)} has shape {list(value.shape)}; one number per step is {[*data.batch_size, 1]}"
        )
    return value


def _name_of(loss: Any, key: Key) -> str:
    """The name in a loss's key map of one of its keys."""
    return next(name for name in loss.key_names() if as_path(loss.path(name)) == as_path(key))


def no_graph(data: TensorDictBase) -> TensorDictBase:
    """The data cut from the graph."""
    with torch.no_grad():
        return data.detach()
