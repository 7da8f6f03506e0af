"""TorchRL: Collector over GymEnv (one env, with three tracking transforms) or over SerialEnv (several)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor


def _single() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def build(n_envs: int, steps: int) -> Callable[[], object]:
    """One repetition collects ``steps`` steps of ``n_envs`` environments."""
    warnings.simplefilter("ignore")
    if n_envs == 1:
        env = TransformedEnv(_single(), Compose(StepCounter(), RewardSum(), InitTracker()))
    else:
        env = SerialEnv(n_envs, _single)
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=nn.Tanh)
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    batches = iter(Collector(env, policy, frames_per_batch=steps * n_envs, total_frames=-1))
    return lambda: next(batches)
