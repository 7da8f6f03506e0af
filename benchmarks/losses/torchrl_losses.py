"""TorchRL: the loss of a TensorDict; forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from _data import ACTION, GAMMA, OBSERVATION, continuous, discrete, on_policy
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.modules import MLP, Actor, IndependentNormal, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, TD3Loss


def build(loss: str, hidden: int) -> Callable[[], object]:
    """One repetition is the loss of 256 rows and its gradients."""
    warnings.simplefilter("ignore")
    module, data = {"dqn": dqn, "ppo": ppo, "sac": sac, "td3": td3}[loss](hidden)
    parameters = list(module.parameters())
    names = [key for key in module.out_keys if key.startswith("loss")]

    def work() -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        losses = module(data)
        value = sum(losses[name] for name in names)
        value.backward()
        return value

    return work


def net(inputs: int, hidden: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> MLP:
    """Two hidden layers."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=[hidden, hidden], activation_class=activation)


def stochastic(network: nn.Module, distribution: type) -> ProbabilisticActor:
    """A policy of a mean and a scale."""
    module = nn.Sequential(network, NormalParamExtractor())
    keyed = TensorDictModule(module, in_keys=["observation"], out_keys=["loc", "scale"])
    return ProbabilisticActor(keyed, in_keys=["loc", "scale"], distribution_class=distribution, return_log_prob=True)


def critic(hidden: int) -> ValueOperator:
    """Of an observation and an action."""
    return ValueOperator(net(OBSERVATION + ACTION, hidden, 1), in_keys=["observation", "action"])


def dqn(hidden: int) -> tuple[nn.Module, TensorDict]:
    """Deep Q-learning."""
    actor = QValueActor(net(OBSERVATION, hidden, ACTION), in_keys=["observation"], action_space="categorical")
    module = DQNLoss(actor, delay_value=True, action_space="categorical")
    module.make_value_estimator(gamma=GAMMA)
    return module, discrete()


def ppo(hidden: int) -> tuple[nn.Module, TensorDict]:
    """Clipped proximal policy optimisation, advantages given."""
    actor = stochastic(net(OBSERVATION, hidden, 2 * ACTION, nn.Tanh), IndependentNormal)
    value = ValueOperator(net(OBSERVATION, hidden, 1, nn.Tanh), in_keys=["observation"])
    return ClipPPOLoss(actor, value), on_policy()


def sac(hidden: int) -> tuple[nn.Module, TensorDict]:
    """Soft actor-critic with two critics."""
    actor = stochastic(net(OBSERVATION, hidden, 2 * ACTION), TanhNormal)
    module = SACLoss(actor, critic(hidden), target_entropy=-float(ACTION))
    module.make_value_estimator(gamma=GAMMA)
    return module, continuous()


def td3(hidden: int) -> tuple[nn.Module, TensorDict]:
    """Twin delayed deterministic policy gradients."""
    network = nn.Sequential(net(OBSERVATION, hidden, ACTION), nn.Tanh())
    module = TD3Loss(Actor(network), critic(hidden), bounds=(-1.0, 1.0))
    module.make_value_estimator(gamma=GAMMA)
    return module, continuous()
