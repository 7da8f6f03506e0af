"""The batch that every contender of this suite gets, made from one seed."""

from __future__ import annotations

import torch
from tensordict import TensorDict

GAMMA, LMBDA = 0.99, 0.95


def batch_of(batch: int, time: int) -> TensorDict:
    """Rewards, ends and values of ``[batch, time]`` steps; about one step in 200 ends an episode."""
    draw = torch.Generator().manual_seed(0)
    shape = (batch, time, 1)
    terminated = torch.rand(shape, generator=draw) < 0.004
    truncated = torch.rand(shape, generator=draw) < 0.001
    return TensorDict(
        {
            "state_value": torch.randn(shape, generator=draw),
            "next": {
                "state_value": torch.randn(shape, generator=draw),
                "reward": torch.randn(shape, generator=draw),
                "terminated": terminated,
                "truncated": truncated,
                "done": terminated | truncated,
            },
        },
        batch_size=[batch, time],
        names=[None, "time"],
    )
