import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import ModelBasedEnvBase
from rl_core.errors import EnvError
from rl_core.testing import CountingEnv


class Imagined(ModelBasedEnvBase):
    def _reset(self, tensordict=None, **kwargs):
        batch = () if tensordict is None else tensordict.batch_size
        return TensorDict({"observation": torch.zeros(*batch, 1)}, batch)


def model():
    def dynamics(observation, action):
        return observation + action, -(observation**2)

    return TensorDictModule(dynamics, ["observation", "action"], ["observation", "reward"])


def test_it_imagines_any_batch_size_with_the_real_specs():
    env = Imagined(model())
    env.set_specs_from_env(CountingEnv(batch_size=[3]))
    assert env.action_spec == CountingEnv().action_spec
    data = env.rollout(4, tensordict=TensorDict({}, [7]))
    assert data.batch_size == (7, 4)
    assert torch.allclose(data["next", "observation"], data["observation"] + data["action"])


def test_gradients_flow_through_imagination():
    env = Imagined(model())
    env.set_specs_from_env(CountingEnv())
    policy = TensorDictModule(nn.Linear(1, 1), ["observation"], ["action"])
    env.rollout(3, policy)["next", "reward"].sum().backward()
    assert policy.module.bias.grad.abs() > 0


def test_a_model_without_rewards_is_an_error():
    env = Imagined(lambda td: td)
    env.set_specs_from_env(CountingEnv())
    with pytest.raises(EnvError, match="rewards"):
        env.rand_step()
