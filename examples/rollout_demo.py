"""A first rollout: a batched-capable environment, a step counter, and a policy with named inputs and outputs."""

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import TransformedEnv
from rl_envs import PendulumEnv, StepCounter

env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=200))

policy = TensorDictModule(
    nn.Sequential(
        nn.LazyLinear(64),
        nn.Tanh(),
        nn.Linear(64, 1),
        nn.Tanh(),
    ),
    in_keys=["observation"],
    out_keys=["action"],
)

rollout = env.rollout(max_steps=32, policy=policy)
assert rollout.batch_size == torch.Size([32])
assert rollout["next", "reward"].shape[:1] == torch.Size([32])
print(rollout)
