"""The batches and networks that every contender of this suite gets: sizes, seeds and shapes in one place."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn

BATCH, OBSERVATION, ACTION = 256, 17, 6
GAMMA = 0.99


def mlp(inputs: int, hidden: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Two hidden layers."""
    layers = [nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, hidden), activation()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs))


def transitions(action: Tensor, **more: Tensor) -> TensorDict:
    """256 transitions as a replay buffer, or a shuffled rollout, gives them."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.rand(BATCH, 1, generator=draw) < 0.02
    return TensorDict(
        {
            "observation": torch.randn(BATCH, OBSERVATION, generator=draw),
            "action": action,
            **more,
            "next": {
                "observation": torch.randn(BATCH, OBSERVATION, generator=draw),
                "reward": torch.randn(BATCH, 1, generator=draw),
                "terminated": ends,
                "done": ends.clone(),
            },
        },
        batch_size=[BATCH],
    )


def discrete() -> TensorDict:
    """For DQN: indices of actions."""
    return transitions(torch.randint(ACTION, (BATCH, 1), generator=torch.Generator().manual_seed(1)))


def continuous() -> TensorDict:
    """For SAC and TD3: actions within (-1, 1)."""
    return transitions(torch.rand(BATCH, ACTION, generator=torch.Generator().manual_seed(1)) * 1.8 - 0.9)


def on_policy() -> TensorDict:
    """For PPO: advantages and value targets are there."""
    draw = torch.Generator().manual_seed(1)
    action = torch.randn(BATCH, ACTION, generator=draw)
    log_prob = -8.5 - torch.rand(BATCH, generator=draw)
    advantage, target = torch.randn(BATCH, 1, generator=draw), torch.randn(BATCH, 1, generator=draw)
    return transitions(action, action_log_prob=log_prob, advantage=advantage, value_target=target)


def trajectories(batch: int, time: int) -> TensorDict:
    """For estimators: values given; about one step in 200 ends an episode."""
    draw = torch.Generator().manual_seed(0)
    shape = (batch, time, 1)
    terminated = torch.rand(shape, generator=draw) < 0.004
    truncated = torch.rand(shape, generator=draw) < 0.001
    return TensorDict(
        {
            "state_value": torch.randn(shape, generator=draw),
            "log_pi": torch.randn(shape, generator=draw),
            "log_mu": torch.randn(shape, generator=draw),
            "next": {
                "state_value": torch.randn(shape, generator=draw),
                "reward": torch.randn(shape, generator=draw),
                "terminated": terminated,
                "done": terminated | truncated,
            },
        },
        batch_size=[batch, time],
        names=[None, "time"],
    )


def sequences(batch: int, time: int) -> TensorDict:
    """For recurrent modules: slices of a replay buffer; a third of them hold the start of another episode."""
    draw = torch.Generator().manual_seed(0)
    is_init = torch.zeros(batch, time, 1, dtype=torch.bool)
    rows = torch.arange(0, batch, 3)
    is_init[rows, torch.randint(1, time, (len(rows),), generator=draw)] = True
    return TensorDict(
        {"observation": torch.randn(batch, time, OBSERVATION, generator=draw), "is_init": is_init},
        batch_size=[batch, time],
    )
