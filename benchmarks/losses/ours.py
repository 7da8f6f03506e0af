"""rl-objectives: the loss of a TensorDict, priorities and logs included; forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _data import ACTION, GAMMA, OBSERVATION, continuous, discrete, on_policy
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_core import LossModule
from rl_modules import (
    MLP,
    Actor,
    IndependentNormal,
    NormalParamExtractor,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from rl_objectives import ClipPPOLoss, DQNLoss, SACLoss, TD3Loss


def build(loss: str, hidden: int, compiled: bool = False) -> Callable[[], object]:
    """One repetition is the loss of 256 rows and its gradients."""
    module, data = {"dqn": dqn, "ppo": ppo, "sac": sac, "td3": td3}[loss](hidden)
    parameters = list(module.parameters())
    names = [key for key in module.out_keys if str(key).startswith("loss")]

    def total() -> Tensor:
        losses = module(data)
        return sum((losses[name] for name in names[1:]), losses[names[0]])

    compute = torch.compile(total) if compiled else total

    def work() -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        value = compute()
        value.backward()
        return value

    work()  # compiles, where that is asked for
    return work


def net(inputs: int, hidden: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> MLP:
    """Two hidden layers."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=[hidden, hidden], activation_class=activation)


def stochastic(network: nn.Module, distribution: type) -> ProbabilisticActor:
    """A policy of a mean and a scale."""
    module = nn.Sequential(network, NormalParamExtractor())
    keyed = TensorDictModule(module, in_keys=["observation"], out_keys=["loc", "scale"])
    return ProbabilisticActor(keyed, in_keys=["loc", "scale"], distribution_class=distribution)


def critic(hidden: int) -> ValueOperator:
    """Of an observation and an action."""
    return ValueOperator(net(OBSERVATION + ACTION, hidden, 1), in_keys=["observation", "action"])


def dqn(hidden: int) -> tuple[LossModule, TensorDict]:
    """Deep Q-learning."""
    actor = QValueActor(net(OBSERVATION, hidden, ACTION), in_keys=["observation"], action_space="categorical")
    return DQNLoss(actor, gamma=GAMMA), discrete()


def ppo(hidden: int) -> tuple[LossModule, TensorDict]:
    """Clipped proximal policy optimisation, advantages given."""
    actor = stochastic(net(OBSERVATION, hidden, 2 * ACTION, nn.Tanh), IndependentNormal)
    value = ValueOperator(net(OBSERVATION, hidden, 1, nn.Tanh), in_keys=["observation"])
    return ClipPPOLoss(actor, value), on_policy()


def sac(hidden: int) -> tuple[LossModule, TensorDict]:
    """Soft actor-critic with two critics."""
    actor = stochastic(net(OBSERVATION, hidden, 2 * ACTION), TanhNormal)
    return SACLoss(actor, critic(hidden), gamma=GAMMA), continuous()


def td3(hidden: int) -> tuple[LossModule, TensorDict]:
    """Twin delayed deterministic policy gradients."""
    network = nn.Sequential(net(OBSERVATION, hidden, ACTION), nn.Tanh())
    return TD3Loss(Actor(network), critic(hidden), bounds=(-1.0, 1.0), gamma=GAMMA), continuous()
