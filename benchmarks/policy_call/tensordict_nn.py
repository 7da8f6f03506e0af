"""tensordict.nn's own probabilistic sequence, which other libraries build their actors on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torch.distributions import Categorical


def build(batch: int) -> Callable[[], object]:
    """One repetition is one call of the policy."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    policy = ProbabilisticTensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=Categorical,
            default_interaction_type=InteractionType.RANDOM,
            return_log_prob=True,
        ),
    )
    data = TensorDict({"observation": torch.randn(batch, 4)}, batch_size=[batch])

    @torch.no_grad()
    def act() -> TensorDict:
        return policy(data)

    return act
