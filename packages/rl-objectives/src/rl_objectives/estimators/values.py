"""The values of each step's observation and of the next one, with as few network calls as give the right numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_core.keys import Key
from rl_core.losses.networks import call_on_tensors

__all__ = ["one_pass_values", "two_pass_values", "value_pair"]


def value_pair(
    network: nn.Module, observation: list[Tensor], following: list[Tensor], key: Key, batch_size: torch.Size
) -> tuple[Tensor, Tensor]:
    """V of both observations by one call on twice the rows.

    Args:
        network: the value network.
        observation: its inputs, each [*B, T, ...].
        following: its inputs at the next step, same shapes.
        key: the network's output.
        batch_size: [*B, T].

    Returns:
        ``(value, next_value)``.
    """
    joined = [torch.cat(pair) for pair in zip(observation, following, strict=True)]
    doubled = torch.Size((2 * batch_size[0], *batch_size[1:]))
    value, next_value = call_on_tensors(network, joined, key, doubled).split(batch_size[0])
    return value, next_value


def two_pass_values(
    network: nn.Module, observation: list[Tensor], following: list[Tensor], key: Key, batch_size: torch.Size
) -> tuple[Tensor, Tensor]:
    """V of both observations by two calls: for networks that look along the first dimension, such as recurrent ones."""
    return call_on_tensors(network, observation, key, batch_size), call_on_tensors(network, following, key, batch_size)


def one_pass_values(
    network: nn.Module, observation: list[Tensor], following: list[Tensor], key: Key, batch_size: torch.Size, time: int
) -> tuple[Tensor, Tensor]:
    """V of both observations by one call on hardly more than half the rows.

    Where the next observation *is* the following row's observation its value is taken from there. Everywhere else
    (ends, cuts, the last step, shuffled rows) it is evaluated for itself, so that the result equals that of
    :func:`value_pair`. Only for networks that treat rows one by one.

    Args:
        network: the value network.
        observation: its inputs, each [*B, T, ...].
        following: its inputs at the next step, same shapes.
        key: the network's output.
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
    values = call_on_tensors(network, joined, key, torch.Size([count + rows.numel()]))
    value = values[:count].unflatten(0, batch_size)
    shifted = torch.cat([value.narrow(time, 1, steps - 1), value.narrow(time, 0, 1)], time)
    next_value = shifted.flatten(0, dims - 1).index_copy(0, rows, values[count:]).unflatten(0, batch_size)
    return value, next_value
