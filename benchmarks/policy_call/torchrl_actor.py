"""TorchRL: ProbabilisticActor on a TensorDict."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.modules import MLP, ProbabilisticActor


def build(batch: int) -> Callable[[], object]:
    """One repetition is one call of the policy."""
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=nn.Tanh)
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=True,
    )
    data = TensorDict({"observation": torch.randn(batch, 4)}, batch_size=[batch])

    @torch.no_grad()
    def act() -> TensorDict:
        return policy(data)

    return act
