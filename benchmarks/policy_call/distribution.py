"""Plain torch as most scripts write it: ``torch.distributions.Categorical`` without validation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributions import Categorical


def build(batch: int) -> Callable[[], object]:
    """One repetition is one call of the policy."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    observation = torch.randn(batch, 4)

    @torch.no_grad()
    def act() -> tuple[torch.Tensor, torch.Tensor]:
        distribution = Categorical(logits=net(observation), validate_args=False)
        action = distribution.sample()
        return action, distribution.log_prob(action)

    return act
