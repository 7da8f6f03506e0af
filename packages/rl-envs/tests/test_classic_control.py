"""CartPole, MountainCar and Acrobot in torch against gymnasium, step by step; batches, gradients, ends."""

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core import check_env_specs, registry
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import EnvKit
from rl_envs import AcrobotEnv, CartPoleEnv, MountainCarEnv, StepCounter

PROBLEMS = [(CartPoleEnv, "CartPole-v1"), (MountainCarEnv, "MountainCar-v0"), (AcrobotEnv, "Acrobot-v1")]


def extreme_states(raw, generator, count):
    """States all over the space, ends and bounds among them."""
    high = {"CartPoleEnv": [2.6, 4, 0.25, 4], "MountainCarEnv": [1.2, 0.07], "AcrobotEnv": [np.pi, np.pi, 12, 28]}
    scale = np.array(high[type(raw).__name__.replace("Env", "") + "Env"])
    states = generator.uniform(-1, 1, (count, len(scale))) * scale
    if len(scale) == 2:
        states[:, 0] = generator.uniform(-1.2, 0.6, count)
    return states.astype(np.float32)


@pytest.mark.parametrize(("cls", "name"), PROBLEMS)
@pytest.mark.parametrize("encoding", [True, False])
def test_every_step_is_gymnasiums(cls, name, encoding):
    raw = gymnasium.make(name).unwrapped
    generator, count = np.random.default_rng(0), 400
    states = extreme_states(raw, generator, count)
    actions = generator.integers(cls.n_actions, size=count)
    env = cls(categorical_action_encoding=encoding)
    action = torch.tensor(actions)
    if not encoding:
        action = torch.nn.functional.one_hot(action, cls.n_actions)
    td = env.step(TensorDict({cls.state_key: torch.tensor(states), "action": action}, batch_size=[count]))
    ended = 0
    for i in range(count):
        raw.reset(seed=0)
        raw.state = np.array(states[i], dtype=np.float64)
        observation, reward, terminated, *_ = raw.step(int(actions[i]))
        got = td["next"][i]
        assert np.allclose(got["observation"].numpy(), observation, atol=1e-5, rtol=1e-5), states[i]
        assert got["reward"].item() == reward
        assert got["terminated"].item() == terminated == got["done"].item()
        ended += terminated
    assert 0 < ended < count, "the case must have both"


@pytest.mark.parametrize(("cls", "name"), PROBLEMS)
def test_first_states_lie_where_gymnasium_draws_them(cls, name):
    raw = gymnasium.make(name)
    seen = np.stack([raw.reset(seed=seed)[0] for seed in range(300)])
    ours = cls(num_envs=300, seed=0).reset()["observation"].numpy()
    assert np.allclose(ours.min(0), seen.min(0), atol=0.02)
    assert np.allclose(ours.max(0), seen.max(0), atol=0.02)


@pytest.mark.parametrize(("cls", "name"), PROBLEMS)
def test_spaces_are_gymnasiums(cls, name):
    raw, env = gymnasium.make(name), cls(categorical_action_encoding=True)
    assert env.action_spec.n == raw.action_space.n
    low = env.observation_spec["observation"].space.low.numpy()
    assert np.allclose(-low, np.maximum(np.abs(raw.observation_space.low), np.abs(raw.observation_space.high)))


@pytest.mark.parametrize(("cls", "name"), PROBLEMS)
def test_seeds_decide_rollouts_and_leave_torchs_generator_alone(cls, name):
    first, again = cls(num_envs=3, seed=1), cls(num_envs=3, seed=1)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    start = first.reset()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(start["observation"], again.reset()["observation"])
    assert not torch.equal(start["observation"], cls(num_envs=3, seed=2).reset()["observation"])


def test_any_batch_size_works_without_a_fixed_number():
    env = CartPoleEnv()
    assert env.batch_size == torch.Size([])
    td = env.rollout(20, auto_reset=False, tensordict=env.reset(TensorDict({}, batch_size=[5, 2])))
    assert td.batch_size[:2] == (5, 2)
    check_env_specs(env)


def test_gradients_flow_through_steps():
    env = CartPoleEnv(categorical_action_encoding=True)
    state = torch.zeros(2, 4, requires_grad=True)
    td = TensorDict({"observation": state, "action": torch.tensor([0, 1])}, batch_size=[2])
    env.step(td)["next", "observation"][:, 3].sum().backward()
    assert state.grad.abs().sum() > 0


def test_only_fallen_rows_start_again():
    env = CartPoleEnv(num_envs=2, categorical_action_encoding=True)
    td = env.reset()
    td["observation"] = torch.tensor([[2.39, 5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    td["action"] = torch.tensor([1, 1])
    stepped, following = env.step_and_maybe_reset(td)
    assert stepped["next", "terminated"].flatten().tolist() == [True, False]
    assert following["observation"][0].abs().max() <= 0.05
    assert torch.equal(following["observation"][1], stepped["next", "observation"][1])


def test_a_step_without_a_state_names_the_cure():
    with pytest.raises(KeyMissingError, match=r"env\.reset"):
        AcrobotEnv().step(TensorDict({"action": torch.tensor([1, 0, 0])}, batch_size=[]))


def test_no_environments_are_refused():
    with pytest.raises(EnvError, match="num_envs=0"):
        MountainCarEnv(num_envs=0)


@pytest.mark.parametrize("name", ["CartPole", "MountainCar", "Acrobot"])
def test_the_registry_makes_them(name):
    assert registry.envs.make(f"native:{name}", num_envs=2).batch_size == (2,)
    assert registry.envs.describe(f"native:{name}").startswith(name)


class OurKit(EnvKit):
    distribution = "rl-envs"


class TestManyCartPoles(OurKit):
    def make_env(self):
        return CartPoleEnv(num_envs=3)


class TestAnAcrobot(OurKit):
    def make_env(self):
        return AcrobotEnv(categorical_action_encoding=True)


class TestMountainCarsThroughATransform(OurKit):
    def make_env(self):
        return MountainCarEnv(num_envs=2).append_transform(StepCounter(max_steps=5))
