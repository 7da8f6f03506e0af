"""The same parts: ``SoftUpdate``, ``ProbabilisticActor`` on a TensorDict, ``LSTMModule`` on sequences with resets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _data import ACTION, GAMMA, OBSERVATION, sequences
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from torch import nn

from rl_modules import (
    MLP,
    Actor,
    LSTMModule,
    NormalParamExtractor,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
    set_recurrent_mode,
)
from rl_objectives import SoftUpdate, TD3Loss


def build(part: str, **options: int) -> Callable[[], object]:
    """One repetition is one update, one call of the policy, or one pass over all sequences."""
    return {"targets": targets, "actor": actor, "lstm": lstm}[part](**options)


def targets(hidden: int) -> Callable[[], object]:
    """The target critics of a loss."""
    net = MLP(in_features=OBSERVATION + ACTION, out_features=1, num_cells=[hidden, hidden])
    critics = [ValueOperator(net, in_keys=["observation", "action"])]
    critics.append(ValueOperator(MLP(OBSERVATION + ACTION, 1, num_cells=[hidden, hidden]), ["observation", "action"]))
    loss = TD3Loss(Actor(nn.Linear(OBSERVATION, ACTION)), critics, bounds=(-1, 1), delay_actor=False, gamma=GAMMA)
    return SoftUpdate(loss, tau=0.005).step


def actor(hidden: int, batch: int) -> Callable[[], object]:
    """A squashed normal, drawn from."""
    net = MLP(in_features=OBSERVATION, out_features=2 * ACTION, num_cells=[hidden, hidden])
    policy = ProbabilisticActor(
        TensorDictModule(nn.Sequential(net, NormalParamExtractor()), ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=True,
    )
    data = TensorDict({"observation": torch.randn(batch, OBSERVATION)}, batch_size=[batch])
    return torch.no_grad()(lambda: policy(data))


def lstm(hidden: int, batch: int, time: int, backward: bool) -> Callable[[], object]:
    """States at the first rows, flags where episodes begin: cut at each call."""
    module = LSTMModule(OBSERVATION, hidden, in_key="observation", out_key="features")
    data = sequences(batch, time)
    state = torch.zeros(batch, time, 1, hidden)
    inputs = (data["observation"], state, state, data["is_init"])

    def forward() -> torch.Tensor:
        with set_recurrent_mode(True):
            return module.forward_tensors(*inputs)[0]

    def both() -> None:
        module.zero_grad()
        forward().sum().backward()

    return both if backward else torch.no_grad()(forward)
