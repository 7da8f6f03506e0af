"""rl-collectors: Collector over GymEnv, one env with three tracking transforms or one vectorised env."""

from __future__ import annotations

from collections.abc import Callable

from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector
from rl_core import Compose, TransformedEnv
from rl_envs import GymEnv, InitTracker, RewardSum, StepCounter
from rl_modules import MLP, Categorical, ProbabilisticActor


def build(n_envs: int, steps: int) -> Callable[[], object]:
    """One repetition collects ``steps`` steps of ``n_envs`` environments."""
    if n_envs == 1:
        env = GymEnv("CartPole-v1", categorical_action_encoding=True)
        env = TransformedEnv(env, Compose(StepCounter(), RewardSum(), InitTracker()))
    else:
        env = GymEnv("CartPole-v1", num_envs=n_envs, categorical_action_encoding=True)
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
