"""GymLikeEnv: a simulator with results of its own becomes an environment by saying how they are read."""

import gymnasium
import numpy as np
import pytest
import torch

from rl_core import Bounded, Categorical, Composite, OneHot, TransformedEnv, Unbounded, check_env_specs
from rl_core.errors import EnvError
from rl_core.testing import EnvKit
from rl_envs import GymLikeEnv, GymWrapper, StepCounter, default_info_dict_reader


class Lander:
    """Falls from a height of 4 to 8 by the thrust's opposite; says how it ended in words, and what it burnt."""

    gravity = 2.0

    def __init__(self):
        self.rng, self.closed, self.seen = np.random.default_rng(0), False, []

    def restart(self, seed=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.height, self.time = 4 + 4 * self.rng.random(), 0
        return self.height

    def burn(self, thrust):
        self.seen.append(thrust)
        self.time += 1
        self.height -= self.gravity - float(thrust[0])
        status = "landed" if self.height <= 0 else "out of time" if self.time >= 6 else "flying"
        return self.height, status, abs(float(thrust[0]))

    def close(self):
        self.closed = True


SPECS = {
    "observation_spec": Composite(
        state=Composite(height=Unbounded(shape=(1,), dtype=torch.float64)),
        cost=Unbounded(shape=(1,), dtype=torch.float32),
    ),
    "action_spec": Bounded(low=-1.0, high=1.0, shape=(1,), dtype=torch.float32),
}


class LanderEnv(GymLikeEnv):
    """The cost is an entry of its own."""

    def begin(self, seed, options):
        return self._env.restart(seed)

    def advance(self, action):
        return self._env.burn(action)

    def _reset_output_transform(self, reset_outputs):
        return (reset_outputs, 0.0), {}

    def _output_transform(self, step_outputs):
        height, status, burnt = step_outputs
        return (height, burnt), -1, status == "landed", status == "out of time", None, {"status": {"flies": height > 0}}

    def read_obs(self, observations):
        height, burnt = observations
        return {"state": {"height": [height]}, "cost": [burnt]}


def lander(**kwargs):
    return LanderEnv(Lander(), **SPECS, **kwargs)


class TestLander(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return lander()


def test_what_the_simulator_says_becomes_entries_with_specs():
    env = lander()
    check_env_specs(env)
    env.set_seed(5)
    data = env.rollout(20, lambda td: td.set("action", torch.zeros(1)))
    heights = 4 + 4 * np.random.default_rng(5).random() - 2.0 * np.arange(len(data) + 1)
    assert np.allclose(data["state", "height"][:, 0].numpy(), heights[:-1])
    assert np.allclose(data["next", "state", "height"][:, 0].numpy(), heights[1:])
    assert data["state", "height"].dtype == torch.float64 and data["next", "reward"].flatten().tolist() == [-1.0] * len(
        data
    )
    assert data["next", "terminated"][-1] and heights[-1] <= 0 and not data["next", "truncated"].any()


def test_a_time_limit_truncates_and_costs_are_those_of_the_step():
    data = lander().rollout(20, lambda td: td.set("action", torch.full((1,), 0.5)) if td["cost"] < 1 else td)
    assert data["next", "cost"].flatten().tolist() == [0.5] * len(data) and data["cost"][0] == 0
    up = LanderEnv(Lander(), **SPECS)
    up._env.gravity = 0.0
    data = up.rollout(20, lambda td: td.set("action", torch.zeros(1)))
    assert len(data) == 6 and data["next", "truncated"][-1] and not data["next", "terminated"].any()


def test_a_flag_for_any_end_terminates_unless_it_was_cut():
    env = lander()
    flags = {(None, None, True): (True, False), (False, True, True): (False, True), (None, None, False): (False, False)}
    for given, expected in flags.items():
        assert env.read_done(*given) == expected


def test_frame_skip_repeats_the_action_and_sums_rewards_up_to_the_end():
    env = lander(frame_skip=2)
    env.set_seed(0)
    data = env.rollout(20, lambda td: td.set("action", torch.zeros(1)))
    frames = len(env.seen)
    assert data["next", "reward"].sum() == -frames and len(data) == (frames + 1) // 2
    with pytest.raises(ValueError, match="frame_skip"):
        lander(frame_skip=0)


def test_infos_are_read_where_asked_for():
    env = lander().set_info_dict_reader()
    assert ("status", "flies") in env.observation_spec.keys(True)
    data = env.rollout(20, lambda td: td.set("action", torch.zeros(1)))
    assert data["next", "status", "flies"].flatten().tolist() == [True] * (len(data) - 1) + [False]
    reader = default_info_dict_reader(["score"], spec=[Unbounded(shape=(), dtype=torch.float32)])
    assert not lander().set_info_dict_reader(reader).rollout(2)["next", "score_present"].any()


def test_transforms_seeds_attributes_and_closing():
    env = TransformedEnv(lander(), StepCounter(max_steps=2))
    assert env.rollout(5, break_when_any_done=False)["step_count"].flatten().tolist() == [0, 1, 0, 1, 0]
    one = lander()
    starts = [one.reset(seed=3)["state", "height"].item() for _ in range(2)]
    assert starts[0] == starts[1] != one.reset()["state", "height"].item()
    assert one.gravity == 2.0
    with pytest.raises(AttributeError, match="no_such"):
        one.no_such  # noqa: B018
    one.close()
    assert one.closed


class Plain:
    """Gymnasium's interface without being of its classes."""

    observation_space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Box(-9, 9, (2,), np.float32), "room": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Discrete(3, start=-1)
    count = 0

    def reset(self, seed=None, options=None):
        self.count, self.seen = 0, []
        return self._observed(), {}

    def step(self, action):
        self.seen.append(action)
        self.count += 1
        return self._observed(), np.float64(action), self.count == 4, False, {}

    def _observed(self):
        return {"place": np.full(2, self.count), "room": self.count % 3}


def test_spaces_of_the_simulator_are_read_and_choices_are_plain_numbers():
    env = GymLikeEnv(Plain())
    check_env_specs(env)
    data = env.rollout(9)
    assert isinstance(env.action_spec, OneHot) and data["room"].argmax(-1).tolist() == [0, 1, 2, 0]
    assert all(type(action) is int and -1 <= action <= 1 for action in env.seen)
    assert data["next", "reward"].flatten().tolist() == [float(action) for action in env.seen]
    assert data["place"].dtype == torch.float32 and data["next", "terminated"].flatten().tolist() == [False] * 3 + [
        True
    ]
    numbers = GymLikeEnv(Plain(), categorical_action_encoding=True)
    assert isinstance(numbers.action_spec, Categorical) and numbers.rollout(2)["action"].shape == (2,)


def test_vector_rewards_have_the_spec_that_is_given():
    class Both(LanderEnv):
        def read_reward(self, reward):
            return np.array([reward, 1.0])

    env = Both(Lander(), **SPECS, reward_spec=Unbounded(shape=(2,), dtype=torch.float32), frame_skip=2)
    assert env.rand_step()["next", "reward"].tolist() == [-2.0, 2.0]
    with pytest.raises(EnvError, match=r"reward of shape \(2,\); its reward_spec says \(1,\)"):
        Both(Lander(), **SPECS).rand_step()


def test_what_does_not_fit_is_said():
    with pytest.raises(EnvError, match=r"observation_spec is a spec.*Lander has no observation_space"):
        LanderEnv(Lander(), action_spec=SPECS["action_spec"])
    env = lander()
    with pytest.raises(EnvError, match="before its first reset"):
        env.step(env.rand_action())
    last = env.rollout(9)[-1]
    with pytest.raises(EnvError, match="after its episode ended"):
        env.step(env.rand_action(env.step_mdp(last)))

    class Short(LanderEnv):
        def _output_transform(self, step_outputs):
            return step_outputs

    with pytest.raises(EnvError, match=r"Short._output_transform returned 3 values; \(observation, reward, terminated"):
        Short(Lander(), **SPECS).rand_step()

    class Odd(LanderEnv):
        def read_obs(self, observations):
            return {"state": {"height": [1.0, 2.0]}, "cost": 0.0}

    with pytest.raises(EnvError, match="height"):
        Odd(Lander(), **SPECS).reset()


# -------------------------------------------------------------------- what gymnasium's adapter says of such results
class Constrained(gymnasium.Env):
    """Six results, as constrained environments give them."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    results = 6

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (np.zeros(1, np.float32), {}) if self.results else np.zeros(1, np.float32)

    def step(self, action):
        return (np.zeros(1, np.float32), 1.0, 0.5, False, False, {})[: self.results]


def made(results):
    env = Constrained()
    env.results = results
    return env


@pytest.mark.parametrize("vector", [False, True])
def test_steps_of_another_length_are_refused_with_the_cure(vector):
    for results, cure in ((6, r"6 values.*cost.*info\['cost'\].*GymLikeEnv"), (4, "4 values.*shimmy"), (3, "3 values")):
        env = GymWrapper(made(results))
        with pytest.raises(EnvError, match=cure):
            env.rand_step()
    with pytest.raises(EnvError, match=r"6 values.*cost"):
        GymWrapper(made(6), frame_skip=2).rand_step()
    with pytest.raises(EnvError, match="reset of Constrained returned a ndarray"):
        GymWrapper(made(0)).reset()


def test_a_wrapper_that_puts_the_cost_into_info_makes_it_an_entry():
    class CostInInfo(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, cost, terminated, truncated, info = self.env.step(action)
            return observation, reward, terminated, truncated, {**info, "cost": cost}

    env = GymWrapper(CostInInfo(made(6))).set_info_dict_reader(["cost"])
    data = env.rollout(3)
    assert data["next", "cost"].flatten().tolist() == [0.5] * 3 and data["next", "cost_present"].all()
    assert data["cost"][0] == 0 and not data["cost_present"][0]


# -------------------------------------------------------------------- providers of batches
class Batches:
    """Steps three counters at once and resets them itself, as PufferLib's environments do; no last observations."""

    single_observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)
    num_agents = 3

    def reset(self, seed=None):
        self.counts = np.arange(3)
        return self.counts[:, None].astype(np.float32), []

    def step(self, actions):
        self.counts = self.counts + 1
        over = self.counts >= 4
        self.counts[over] = 0
        return self.counts[:, None].astype(np.float32), actions.astype(np.float32), over, np.zeros(3, bool), []


class BatchesVector(gymnasium.vector.VectorEnv):
    """The bridge that the README shows."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def __init__(self, env):
        self.env, self.num_envs = env, env.num_agents
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed)[0], {}

    def step(self, actions):
        return *self.env.step(actions)[:4], {}


def test_a_provider_of_batches_becomes_a_gymnasium_vector_environment():
    env = GymWrapper(BatchesVector(Batches()), True, missing_obs_value=float("nan"))
    data = env.rollout(4, break_when_any_done=False)
    assert data["observation"][..., 0].tolist() == [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]
    last = data["next", "observation"][data["next", "done"]]
    assert len(last) == 3 and last.isnan().all()  # lost, and never the first one of the next episode
    assert torch.equal(data["next", "reward"][..., 0], data["action"].float())
    with pytest.raises(EnvError, match="missing_obs_value"):
        GymWrapper(BatchesVector(Batches()), True).rollout(4, break_when_any_done=False)
