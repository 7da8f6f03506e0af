"""TorchVectorEnv on a small simulator of batched tensors: native autoreset, last observations, rows."""

import pytest
import torch
from gymnasium import spaces

from rl_core import Composite, TransformedEnv, Unbounded, check_env_specs
from rl_core.errors import EnvError
from rl_core.testing import EnvKit
from rl_envs import RewardSum, StepCounter, TorchVectorEnv


class Drift:
    """N points that drift by the action; row i ends after ``lengths[i]`` steps, odd rows by a truncation.

    It writes every observation into the same memory, resets ended rows within the step, and tells their last
    observations where ``final`` says so.
    """

    def __init__(self, lengths=(2, 3, 5), final="final_obs", autoreset=True, nested=False):
        self.num_envs, self.device = len(lengths), torch.device("cpu")
        self.lengths, self.final, self.autoreset, self.nested = torch.tensor(lengths), final, autoreset, nested
        box = spaces.Box(-99, 99, (2,))
        push = spaces.Box(-1, 1, (2,))
        self.single_observation_space = (
            spaces.Dict(policy=box, more=spaces.Dict(n=spaces.Discrete(99))) if nested else box
        )
        self.single_action_space = spaces.Tuple((push, spaces.Discrete(3, start=1))) if nested else spaces.Discrete(3)
        self.generator, self.buffer = torch.Generator(), torch.zeros(self.num_envs, 2)
        self.closed, self.seeds = False, []

    def begin(self, rows):
        self.count[rows] = 0
        self.place[rows] = torch.rand(self.num_envs, generator=self.generator)[rows]

    def observe(self):
        self.buffer[:, 0], self.buffer[:, 1] = self.place, self.count
        return {"policy": self.buffer, "more": {"n": self.count}} if self.nested else self.buffer

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        if seed is not None:
            self.generator.manual_seed(seed)
        rows = (options or {}).get("env_idx")
        if rows is None:
            self.count, self.place = torch.zeros(self.num_envs, dtype=torch.int64), torch.zeros(self.num_envs)
            rows = slice(None)
        self.begin(rows)
        return self.observe(), {}

    def step(self, action):
        push = action[0][:, 0] if self.nested else action
        assert not self.nested or (action[1] >= 1).all()
        self.count = self.count + 1
        self.place = self.place + push
        over = self.count >= self.lengths
        odd = torch.arange(self.num_envs) % 2 == 1
        info = {}
        if self.autoreset and over.any():
            if self.final:
                last = self.observe()
                info[self.final] = (
                    {"policy": last["policy"].clone(), "more": {"n": self.count.clone()}}
                    if self.nested
                    else last.clone()
                )
            self.begin(over)
        return self.observe(), push.float(), over & ~odd, over & odd, info

    def close(self):
        self.closed = True


class DriftKit(EnvKit):
    distribution = "rl-envs"


class TestNativeAutoreset(DriftKit):
    def make_env(self):
        return TorchVectorEnv(Drift(), reset_rows="env_idx")


class TestNestedSpaces(DriftKit):
    def make_env(self):
        return TorchVectorEnv(Drift(nested=True), reset_rows="env_idx", categorical_action_encoding=True)


class TestWithoutAutoreset(DriftKit):
    def make_env(self):
        return TorchVectorEnv(Drift(autoreset=False), native_autoreset=False, reset_rows="env_idx")


class TestThroughTransforms(DriftKit):
    def make_env(self):
        env = TorchVectorEnv(Drift(), reset_rows="env_idx")
        return TransformedEnv(env, StepCounter(max_steps=4)).append_transform(RewardSum())


@pytest.mark.parametrize("final", ["final_obs", "final_observation"])
def test_transitions_are_clean_and_last_observations_true(final):
    sim = Drift(final=final)
    env = TorchVectorEnv(sim)
    check_env_specs(env, seed=0)
    torch.manual_seed(0)
    env.set_seed(1)
    data = env.rollout(10, break_when_any_done=False)
    number, place = data["observation"][..., 1], data["observation"][..., 0]
    assert number.tolist() == [[0, 1] * 5, [0, 1, 2] * 3 + [0], [0, 1, 2, 3, 4] * 2]
    assert torch.equal(data["next", "observation"][..., 1], number + 1)
    push = data["action"].argmax(-1)
    assert torch.allclose(data["next", "observation"][..., 0], place + push)
    assert torch.equal(data["next", "reward"][..., 0], push.float())
    ends = data["next", "done"][..., 0]
    assert torch.equal(ends, number + 1 == torch.tensor([[2], [3], [5]]))
    assert torch.equal(data["next", "truncated"][..., 0], ends & torch.tensor([[False], [True], [False]]))
    inside = ~ends[:, :-1]
    assert torch.equal(place[:, 1:][inside], data["next", "observation"][..., 0][:, :-1][inside])
    starts = place[number == 0]
    assert len(starts.unique()) == len(starts) and (starts < 1).all()  # an episode begins once, with its own number
    assert sim.seeds[-1] == 1


def test_lost_last_observations_are_marked():
    env = TorchVectorEnv(Drift(final=None, nested=True))
    data = env.rollout(6, break_when_any_done=False)
    ends = data["next", "done"][..., 0]
    assert torch.equal(data["next", "policy"].isnan().any(-1), ends) and not data["policy"].isnan().any()
    assert (data["next", "more", "n"][ends] == -1).all() and (data["next", "more", "n"][~ends] > 0).all()


@pytest.mark.parametrize("autoreset", [True, False])
def test_rows_that_are_not_reset_keep_their_last_values(autoreset):
    env = TorchVectorEnv(Drift(autoreset=autoreset), native_autoreset=autoreset, reset_rows="env_idx")
    data = env.rollout(9, break_when_any_done=False, break_when_all_done=True)
    assert data.shape == (3, 5) and data["next", "done"][:, -1].all()
    assert data["next", "observation"][0, :, 1].tolist() == [1, 2, 2, 2, 2]
    td, push = env.reset(), torch.eye(3, dtype=torch.int64)[[2, 2, 2]]
    for t in range(4):
        td = env.step(td.set("action", push))
        assert td["next", "observation"][:, 1].tolist() == [min(t + 1, n) for n in (2, 3, 5)]
        assert td["next", "reward"].flatten().tolist() == [2.0 * (t < n) for n in (2, 3, 5)]
        assert td["next", "done"].flatten().tolist() == [t + 1 >= n for n in (2, 3, 5)]
        td = env.step_mdp(td)
    fresh = env.maybe_reset(td)
    assert fresh["observation"][:, 1].tolist() == [0, 0, 4] and not fresh["done"].any()


def test_rows_that_the_simulator_did_not_end_need_a_way_to_reset_them():
    env = TransformedEnv(TorchVectorEnv(Drift()), StepCounter(max_steps=4))
    with pytest.raises(EnvError, match=r"reset the rows \[2\] alone.*reset_rows='env_idx'"):
        env.rollout(7, break_when_any_done=False)
    told = []

    def reset_rows(sim, rows):
        told.append(rows.tolist())
        sim.begin(rows)
        return sim.observe()

    env = TransformedEnv(TorchVectorEnv(Drift(), reset_rows=reset_rows), StepCounter(max_steps=4))
    data = env.rollout(7, break_when_any_done=False)
    assert data["observation"][2, :, 1].tolist() == [0, 1, 2, 3, 0, 1, 2] and told == [[2]]
    assert data["observation"][0, :, 1].tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_specs_can_be_given_where_there_are_no_spaces():
    sim = Drift()
    del sim.single_observation_space, sim.single_action_space
    with pytest.raises(EnvError, match="no single_observation_space; give TorchVectorEnv its observation_spec"):
        TorchVectorEnv(sim)
    number = Unbounded(shape=(), dtype=torch.float32)
    env = TorchVectorEnv(sim, observation_spec=Unbounded(shape=(2,), dtype=torch.float64), action_spec=number)
    assert env.rollout(2)["observation"].dtype == torch.float64
    missing = Composite(other=Unbounded(shape=(2,), dtype=torch.float32))
    with pytest.raises(EnvError, match="without 'other'"):
        TorchVectorEnv(Drift(nested=True), observation_spec=missing).reset()


def test_steps_seeds_attributes_and_the_end():
    sim = Drift()
    env = TorchVectorEnv(sim)
    with pytest.raises(EnvError, match="before its first reset"):
        env.step(env.rand_action())
    env.reset(seed=7)
    assert sim.seeds == [7] and env.lengths is sim.lengths and env.device == torch.device("cpu")
    with pytest.raises(TypeError, match="seed= and options="):
        env.reset(level=1)
    env.close()
    assert sim.closed
