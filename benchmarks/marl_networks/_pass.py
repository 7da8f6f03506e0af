"""One pass through a network of agents: forward without gradients, or forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

AGENTS, FEATURES, OUTPUTS, CELLS = 3, 18, 4, 256


def one_pass(net: nn.Module, rows: int, backward: bool) -> Callable[[], Tensor]:
    """What one call of the work does with inputs ``[rows, AGENTS, FEATURES]``."""
    # A process that once freed a large block keeps what it frees; else each pass returns its activations to the system,
    # depending on their sizes, and the page faults outweigh the differences between networks.
    torch.empty(6 * 2**20)
    inputs = torch.randn(rows, AGENTS, FEATURES)

    @torch.no_grad()
    def forward() -> Tensor:
        output: Tensor = net(inputs)
        return output

    def forward_and_backward() -> Tensor:
        net.zero_grad()
        loss: Tensor = net(inputs).square().mean()
        loss.backward()
        return loss

    return forward_and_backward if backward else forward
