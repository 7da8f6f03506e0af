"""rl-modules: ProbabilisticActor on a TensorDict it writes into, or on bare tensors as collectors call it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn

from rl_modules import MLP, Categorical, ProbabilisticActor


def build(batch: int, container: bool) -> Callable[[], object]:
    """One repetition is one call of the policy."""
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=nn.Tanh)
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=True,
    )
    observation = torch.randn(batch, 4)
    data = TensorDict({"observation": observation}, batch_size=[batch])
    return torch.no_grad()((lambda: policy(data)) if container else (lambda: policy.forward_tensors(observation)))
