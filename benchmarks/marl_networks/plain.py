"""The hand-written limit: one MLP on the batch with agents as rows, or a list of MLPs, one per agent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _pass import AGENTS, CELLS, FEATURES, OUTPUTS, one_pass
from torch import Tensor, nn


def _mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, CELLS), nn.Tanh(), nn.Linear(CELLS, CELLS), nn.Tanh(), nn.Linear(CELLS, OUTPUTS)
    )


class Flattened(nn.Module):
    """One net for all agents."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        """[*B, n, F] to [*B, n, outputs]."""
        output: Tensor = self.net(inputs.flatten(0, 1)).unflatten(0, (-1, AGENTS))
        return output


class OneByOne(nn.Module):
    """A net for each agent."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(_mlp() for _ in range(AGENTS))

    def forward(self, inputs: Tensor) -> Tensor:
        """[*B, n, F] to [*B, n, outputs]."""
        return torch.stack([net(inputs[:, i]) for i, net in enumerate(self.nets)], 1)


def build(rows: int, backward: bool, share_params: bool) -> Callable[[], object]:
    """One repetition is one pass over ``rows`` rows of three agents."""
    return one_pass(Flattened() if share_params else OneByOne(), rows, backward)
