"""Keeping a network out of a computation's gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["hold_out_net"]


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
    held = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)
