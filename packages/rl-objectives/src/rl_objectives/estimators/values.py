"""The values of each step's observation and of the next one, with as few network calls as give the right numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import missing_key
from rl_core.losses.networks import call_on_tensors
from rl_core.policy_state import carried_state
from rl_core.recurrence import set_recurrent_mode

__all__ = ["Evaluate", "along_time", "evaluator", "one_pass_values", "sequence_inputs", "two_pass_values", "value_pair"]

Evaluate = Callable[[list[Tensor], torch.Size], Tensor]
"""A value network as a function of its inputs, each [*B, ...], and of *B."""


def along_time() -> AbstractContextManager[Any]:
    """The mode in which recurrent networks read sequences.

    The compiler cannot trace a context variable: enter ``set_recurrent_mode(True)`` around a compiled call yourself.
    """
    return nullcontext() if torch.compiler.is_compiling() else set_recurrent_mode(True)


def evaluator(
    network: nn.Module, key: Key, *, weights: Mapping[str, Tensor] | None = None, chunk: int | None = None
) -> Evaluate:
    """The network as a function.

    Args:
        network: the value network.
        key: which of its outputs is meant.
        weights: tensors to use in place of its own.
        chunk: at most so many indices of the first dimension at once, for batches whose activations do not fit in
            memory; None: all.
    """
    own = None if weights is None else dict(weights)

    def evaluate(inputs: list[Tensor], batch_size: torch.Size) -> Tensor:
        if chunk is None or not batch_size or batch_size[0] <= chunk:
            return call_on_tensors(network, inputs, key, batch_size, weights=own)
        values = []
        for piece in zip(*(value.split(chunk) for value in inputs), strict=True):
            size = torch.Size((piece[0].shape[0], *batch_size[1:]))
            values.append(call_on_tensors(network, piece, key, size, weights=own))
        return torch.cat(values)

    return evaluate


def value_pair(
    evaluate: Evaluate, observation: list[Tensor], following: list[Tensor], batch_size: torch.Size
) -> tuple[Tensor, Tensor]:
    """V of both observations by one call on twice the rows.

    Args:
        evaluate: the value network.
        observation: its inputs, each [*B, T, ...].
        following: its inputs at the next step, same shapes.
        batch_size: [*B, T].

    Returns:
        ``(value, next_value)``.
    """
    joined = [torch.cat(pair) for pair in zip(observation, following, strict=True)]
    doubled = torch.Size((2 * batch_size[0], *batch_size[1:]))
    value, next_value = evaluate(joined, doubled).split(batch_size[0])
    return value, next_value


def two_pass_values(
    evaluate: Evaluate, observation: list[Tensor], following: list[Tensor], batch_size: torch.Size
) -> tuple[Tensor, Tensor]:
    """V of both observations by two calls: for networks that look along the first dimension."""
    return evaluate(observation, batch_size), evaluate(following, batch_size)


def one_pass_values(
    evaluate: Evaluate, observation: list[Tensor], following: list[Tensor], batch_size: torch.Size, time: int
) -> tuple[Tensor, Tensor]:
    """V of both observations by one call on hardly more than half the rows.

    Where the next observation *is* the following row's observation its value is taken from there. Everywhere else
    (ends, cuts, the last step, shuffled rows) it is evaluated for itself, so that the result equals that of
    :func:`value_pair`. Only for networks that treat rows one by one.

    Args:
        evaluate: the value network.
        observation: its inputs, each [*B, T, ...].
        following: its inputs at the next step, same shapes.
        batch_size: [*B, T].
        time: index of T.

    Returns:
        ``(value, next_value)``.
    """
    dims = len(batch_size)
    apart = torch.ones(batch_size, dtype=torch.bool, device=observation[0].device)
    steps = batch_size[time]
    for now, then in zip(observation, following, strict=True):
        differs = then.narrow(time, 0, steps - 1) != now.narrow(time, 1, steps - 1)
        differs = differs.flatten(dims).any(-1) if differs.ndim > dims else differs
        if now is observation[0]:
            apart.narrow(time, 0, steps - 1).copy_(differs)
        else:
            apart.narrow(time, 0, steps - 1).logical_or_(differs)
    rows = apart.flatten().nonzero().squeeze(-1)
    joined = [
        torch.cat([now.flatten(0, dims - 1), then.flatten(0, dims - 1).index_select(0, rows)])
        for now, then in zip(observation, following, strict=True)
    ]
    count = batch_size.numel()
    values = evaluate(joined, torch.Size([count + rows.numel()]))
    value = values[:count].unflatten(0, batch_size)
    shifted = torch.cat([value.narrow(time, 1, steps - 1), value.narrow(time, 0, 1)], time)
    next_value = shifted.flatten(0, dims - 1).index_copy(0, rows, values[count:]).unflatten(0, batch_size)
    return value, next_value


def sequence_inputs(network: nn.Module, batch: TensorDictBase, owner: str) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs, now and at the next step, of a network that reads sequences and carries state along them.

    A critic's own state is rarely in a batch, since only the policy ran while it was collected. Where it is absent it
    starts from zeros at the first row and at each first step. Under "next" neither state nor first-step flags are
    needed: an observation that ends an episode is read in the state that its own step led to.

    Args:
        network: the network.
        batch: [*B, T].
        owner: who asks, for the error.

    Returns:
        ``(observation, following)``, a tensor per in_key each.
    """
    state = carried_state(network)
    owned = {as_key(key) for key in [*state.specs, *state.init_keys]}
    now, then = [], []
    for key in map(as_key, network.in_keys):  # type: ignore[arg-type]
        value = batch.get(key, None)
        if value is None and key in state.specs:
            spec = state.specs[key]
            value = torch.zeros(*batch.batch_size, *spec.shape, dtype=spec.dtype, device=batch.device)
        following = batch.get(join("next", key), None) if key not in owned else value
        for name, found in ((key, value), (join("next", key), following)):
            if found is None:
                cure = f"It is an in_key of {type(network).__name__}: rename there, or let the environment write it."
                raise missing_key(owner, name, batch, cure)
        now.append(value)
        then.append(torch.zeros_like(following) if key in owned else following)
    return now, then
