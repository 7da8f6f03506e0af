"""The state of gymnasium environments in checkpoints: a copy that loads it goes on as the original does."""

import io

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rl_core import TransformedEnv
from rl_core.errors import CheckpointError, EnvError
from rl_envs import GymEnv, GymWrapper, StepCounter
from rl_envs.gym import replay as replay_module


def through_a_file(state):
    """What a checkpoint may hold: it is read back without running any code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def policy(td):
    """Depends on the observation only."""
    push = (td["observation"].sum(-1) > 0).long()
    return td.set("action", torch.nn.functional.one_hot(push, 2))


def drive(env, td, steps):
    seen = []
    for _ in range(steps):
        stepped, td = env.step_and_maybe_reset(policy(td))
        seen.append(stepped["next"].clone())
    return torch.stack(seen, -1), td


@pytest.mark.parametrize("steps", [0, 1, 25, 26, 27, 93])
@pytest.mark.parametrize("num_envs", [0, 3])
def test_a_new_environment_goes_on_where_the_state_was_made(num_envs, steps):
    def make():
        return TransformedEnv(GymEnv("CartPole-v1", num_envs=num_envs, max_episode_steps=26), StepCounter())

    env = make()
    env.set_seed(3)
    td = env.reset()
    if steps:
        _, td = drive(env, td, steps)
    state, copy = through_a_file(env.state_dict()), make()
    expected, _ = drive(env, td.clone(), 80)
    copy.load_state_dict(state)
    found, _ = drive(copy, td.clone(), 80)
    assert expected["done"].sum() >= 3
    for key in expected.keys(True, True):
        assert torch.equal(found[key], expected[key]), key


def test_a_loaded_environment_can_be_saved_again():
    env, second, third = (GymEnv("CartPole-v1", num_envs=2) for _ in range(3))
    td = env.reset()
    _, td = drive(env, td, 13)
    second.load_state_dict(env.state_dict())
    _expected, td = drive(second, td, 9)
    third.load_state_dict(second.state_dict())
    assert torch.equal(drive(third, td.clone(), 30)[0]["observation"], drive(second, td.clone(), 30)[0]["observation"])


def test_an_environment_goes_back_to_its_own_state_in_rollouts_too():
    env = GymEnv("Pendulum-v1", num_envs=2, max_episode_steps=20)
    env.rollout(33, break_when_any_done=False)
    state = env.state_dict()
    first = env.reset()["observation"]
    env.reset()
    env.load_state_dict(state)
    assert torch.equal(env.reset()["observation"], first)


def test_rows_that_ended_and_wait_for_a_reset_are_brought_back_as_such():
    env, copy = (GymEnv("CartPole-v1", num_envs=3) for _ in range(2))
    env.set_seed(1)
    td = env.reset()
    while not (td := env.step(policy(td)))["next", "done"].any():
        td = env.step_mdp(td)
    td = env.step_mdp(td)
    copy.load_state_dict(env.state_dict())
    fresh, same = env.maybe_reset(td.clone()), copy.maybe_reset(td.clone())
    assert torch.equal(fresh["observation"], same["observation"])


def test_seeds_and_options_of_the_episode_and_seeds_that_wait_are_kept():
    class Optional(gymnasium.Env):
        observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.level = (options or {}).get("level", 0)
            return self.observe(), {}

        def observe(self):
            return np.array([self.level, self.np_random.random()], np.float32)

        def step(self, action):
            return self.observe(), 0.0, False, False, {}

    env, copy = GymWrapper(Optional()), GymWrapper(Optional())
    td = env.reset(seed=5, options={"level": 4})
    _, td = drive(env, td, 3)
    env.set_seed(8)
    copy.load_state_dict(through_a_file(env.state_dict()))
    assert torch.equal(drive(env, td.clone(), 5)[0]["observation"], drive(copy, td.clone(), 5)[0]["observation"])
    assert torch.equal(env.reset()["observation"], copy.reset()["observation"])


class Chat(gymnasium.Env):
    """Answers with what it was told and how often; nested action with a text."""

    observation_space = spaces.Dict(heard=spaces.Text(99), x=spaces.Box(-99, 99, (1,)))
    action_space = spaces.Dict(say=spaces.Text(9), how=spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.heard, self.sum = "", np.zeros(1, np.float32)
        return {"heard": self.heard, "x": self.sum}, {}

    def step(self, action):
        self.heard += action["say"]
        self.sum = self.sum + action["how"][0] + action["how"][1].sum()
        return {"heard": self.heard, "x": self.sum}, 0.0, False, False, {}


@pytest.mark.parametrize("num_envs", [0, 2])
def test_nested_actions_and_texts_are_repeated(num_envs):
    gymnasium.register("RlChat-v0", entry_point=Chat)
    try:
        env, copy = (GymEnv("RlChat-v0", num_envs=num_envs) for _ in range(2))
    finally:
        gymnasium.registry.pop("RlChat-v0")
    env.rollout(5)
    copy.load_state_dict(through_a_file(env.state_dict()))
    td = env.rand_action()
    stepped, same = env.step(td.clone()), copy.step(td.clone())
    assert torch.equal(stepped["next", "x"], same["next", "x"]) and stepped["next", "x"].abs().sum() > 0
    assert stepped["next", "heard"] == same["next", "heard"]
    inner = [each.unwrapped if not num_envs else each._env.envs[1].unwrapped for each in (env, copy)]
    assert inner[0].heard == inner[1].heard


class Haunted(gymnasium.Env):
    """Shows how often it was ever reset, which no repetition of an episode can bring back."""

    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)
    resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        return np.full(1, self.resets, np.float32), {}

    def step(self, action):
        return np.full(1, self.resets, np.float32), 0.0, False, False, {}


def test_an_episode_that_does_not_repeat_itself_asks_for_a_reset():
    env, copy = GymWrapper(Haunted()), GymWrapper(Haunted())
    env.reset()
    td = env.reset()
    copy.load_state_dict(env.state_dict())
    with pytest.raises(EnvError, match=r"env\.reset\(\)"):
        copy.step(policy(td))
    assert copy.step(policy(copy.reset()))["next", "reward"] == 0


def test_an_episode_too_long_to_be_kept_asks_for_a_reset(monkeypatch):
    monkeypatch.setattr(replay_module, "_BYTES", 2000)
    env, copy = (GymEnv("Pendulum-v1", max_episode_steps=500) for _ in range(2))
    data = env.rollout(100)
    assert len(env.replay.rows) < 20
    copy.load_state_dict(env.state_dict())
    with pytest.raises(EnvError, match=r"env\.reset\(\)"):
        copy.step(copy.rand_action(data[-1]["next"]))


def test_what_was_recorded_is_forgotten_with_the_episode():
    env = GymEnv("CartPole-v1", num_envs=2, max_episode_steps=10)
    env.rollout(500, break_when_any_done=False)
    assert len(env.replay.rows) <= 20


def test_a_state_of_another_number_of_environments_is_refused():
    env = GymEnv("CartPole-v1", num_envs=2)
    env.reset()
    with pytest.raises(CheckpointError, match=r"2 environments.*made of 3.*num_envs=2"):
        GymEnv("CartPole-v1", num_envs=3).load_state_dict(env.state_dict())


def test_a_vector_environment_from_elsewhere_keeps_nothing():
    env = GymWrapper(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode="Disabled"))
    env.reset()
    assert env.state_dict() == {}
