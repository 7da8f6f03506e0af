"""Keeping parameters out of a computation's gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["call_detached", "hold_out_net", "hold_out_parameters"]


@contextmanager
def hold_out_net(network: nn.Module) -> Iterator[None]:
    """Inside, the network's parameters require no gradient; gradients still flow through it to its inputs.

    Args:
        network: any module; each parameter gets its own flag back.

    >>> import torch
    >>> net = nn.Linear(1, 1)
    >>> with hold_out_net(net):
    ...     net(torch.ones(1)).requires_grad
    False
    """
    with hold_out_parameters(_parameters_of(network)):
        yield


def _parameters_of(network: nn.Module) -> list[nn.Parameter]:
    """As ``network.parameters()``, but quick: losses ask at every call. What is shared comes twice."""
    found, left = list[nn.Parameter](), [network]
    while left:
        module = left.pop()
        found += [parameter for parameter in module._parameters.values() if parameter is not None]
        left += [child for child in module._modules.values() if child is not None]
    return found


@contextmanager
def hold_out_parameters(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, these parameters require no gradient.

    Args:
        parameters: each gets its own flag back.
    """
    held = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)


def call_detached(network: nn.Module, parameters: Mapping[str, nn.Parameter], *arguments: Any) -> Any:
    """Call a network while some of its parameters stay out of the gradient.

    Args:
        network: the module.
        parameters: those that stay out, by their names in the network.
        *arguments: what the network is called with.

    Returns:
        What the call returns.
    """
    if not parameters:
        return network(*arguments)
    if torch.compiler.is_compiling():  # it cannot trace a change of requires_grad
        detached = {name: parameter.detach() for name, parameter in parameters.items()}
        return torch.func.functional_call(network, detached, arguments)
    with hold_out_parameters(parameters.values()):
        return network(*arguments)
