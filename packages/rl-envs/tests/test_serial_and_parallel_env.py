"""Batches of environments give the same bits in one process and in several; seeds, states, and what travels."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import (
    Bounded,
    Compose,
    Composite,
    EnvBase,
    EnvRef,
    NonTensor,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv
from rl_envs import GymEnv, ParallelEnv, PendulumEnv, RewardSum, SerialEnv, StepCounter


class DrawingEnv(EnvBase):
    """Draws from torch's global generator, at resets and at steps."""

    def __init__(self, seeds_torch=True):
        super().__init__()
        self.seeds_torch = seeds_torch
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def _reset(self, tensordict=None, **kwargs):
        return TensorDict({"observation": torch.rand(2)})

    def _step(self, tensordict):
        drawn = torch.rand(2)
        return TensorDict({"observation": drawn, "reward": drawn[:1], "terminated": drawn[1:] > 0.8})

    def _set_seed(self, seed):
        if self.seeds_torch:
            torch.manual_seed(seed)


class WordEnv(EnvBase):
    """Observes a word and a number that say the same, and where it is."""

    def __init__(self, name="env", length=3):
        super().__init__()
        self.name, self.length, self.count = name, length, 0
        self.observation_spec = Composite(text=NonTensor(example_data="a"), x=Unbounded((1,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def _observe(self):
        return {"text": f"{self.name}-{self.count}", "x": torch.tensor([float(self.count)])}

    def _reset(self, tensordict=None, **kwargs):
        self.count = 0
        return TensorDict(self._observe())

    def _step(self, tensordict):
        self.count += 1
        end = torch.tensor([self.count >= self.length])
        return TensorDict({**self._observe(), "reward": torch.ones(1), "terminated": end})


def transformed_cartpole():
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(max_steps=9), RewardSum()))


def transformed_counting():
    return TransformedEnv(CountingEnv(length=4), Compose(StepCounter(max_steps=3), RewardSum()))


KINDS = {
    "gym by name": "gym:CartPole-v1",
    "gym, one-hot and transforms": transformed_cartpole,
    "containers and transforms": transformed_counting,
    "stateless": PendulumEnv,
    "groups of agents": GroupCountingEnv,
    "drawing from torch": DrawingEnv,
    "drawing from torch, not seeding it": lambda: DrawingEnv(seeds_torch=False),
    "texts": WordEnv,
    "batches": lambda: GymEnv("CartPole-v1", num_envs=2),
}


def rollouts(env, steps=30):
    """A seeded rollout through ends, with random actions, and one that is not seeded but by torch."""
    env.set_seed(3)
    torch.manual_seed(0)
    first = env.rollout(steps, break_when_any_done=False)
    env.close()
    return first


def assert_equal(found, expected):
    keys = {str(key) for key in expected.keys(True, True)}
    assert {str(key) for key in found.keys(True, True)} == keys
    for key in expected.keys(True, True):
        ours, theirs = found.get(key), expected.get(key)
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs), key
        else:
            assert ours.tolist() == theirs.tolist(), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("envs_per_worker", "shared_memory"), [(2, True), (1, False)])
def test_several_processes_give_the_bits_of_one(kind, envs_per_worker, shared_memory):
    expected = rollouts(SerialEnv(3, KINDS[kind]))
    env = ParallelEnv(
        3, KINDS[kind], envs_per_worker=envs_per_worker, shared_memory=shared_memory, mp_start_method="fork"
    )
    assert_equal(rollouts(env), expected)


def test_new_pythons_give_the_bits_of_one_process():
    expected = rollouts(SerialEnv(2, "gym:CartPole-v1"))
    env = ParallelEnv(2, EnvRef("gym:CartPole-v1"), mp_start_method="spawn")
    assert_equal(rollouts(env), expected)


@pytest.mark.parametrize("kind", ["gym by name", "drawing from torch", "stateless"])
def test_torchs_seed_alone_decides_in_both(kind):
    drawn = []
    for make in (SerialEnv, ParallelEnv, SerialEnv):
        env = make(3, KINDS[kind], mp_start_method="fork")
        torch.manual_seed(11)
        drawn.append(env.rollout(10, break_when_any_done=False))
        env.close()
    assert_equal(drawn[0], drawn[1])
    assert_equal(drawn[0], drawn[2])


def test_a_batch_of_gym_environments_is_the_vectorised_one():
    expected = GymEnv("CartPole-v1", num_envs=3)
    assert_equal(rollouts(SerialEnv(3, "gym:CartPole-v1")), rollouts(expected))


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_environments_of_a_run_and_runs_of_near_seeds_share_no_stream(make):
    """Runs with the seeds 0, 1 and 2 of three environments: nine different first observations."""
    env = make(3, "gym:CartPole-v1", mp_start_method="fork")
    first = []
    for seed in range(3):
        env.set_seed(seed)
        first += env.reset()["observation"].tolist()
    env.close()
    assert len({tuple(row) for row in first}) == 9


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_seeding_leaves_torchs_generator_of_this_process_alone(make):
    env = make(2, DrawingEnv, mp_start_method="fork")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    env.set_seed(0)
    env.rollout(4, policy=lambda td: td.set("action", torch.zeros(2, 1)), break_when_any_done=False)
    assert torch.equal(torch.rand(3), expected)
    env.close()


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_words_stay_with_their_row_and_time(make):
    kwargs = [{"name": "a"}, {"name": "b", "length": 2}]
    env = make(2, WordEnv, create_env_kwargs=kwargs, mp_start_method="fork")
    check_env_specs(env)
    data = env.rollout(4, break_when_any_done=False)
    env.close()
    assert data["text"] == [["a-0", "a-1", "a-2", "a-0"], ["b-0", "b-1", "b-0", "b-1"]]
    assert data["next", "text"] == [["a-1", "a-2", "a-3", "a-1"], ["b-1", "b-2", "b-1", "b-2"]]
    assert data["x"].squeeze(-1).tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]


def test_results_are_the_readers_to_keep():
    env = ParallelEnv(2, ArrayCountingEnv, mp_start_method="fork")
    td = env.reset()
    first = env.rand_step(td)
    kept = first.clone()
    env.rand_step(env.step_mdp(first))
    assert_equal(first, kept)
    env.close()


@pytest.mark.parametrize("kind", ["gym by name", "drawing from torch", "containers and transforms"])
@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_batch_goes_on_where_its_state_was_saved(make, kind):
    env, twin = (make(2, KINDS[kind], mp_start_method="fork") for _ in range(2))
    env.set_seed(0)
    td = env.reset()
    torch.manual_seed(0)
    td = env.step_mdp(env.rand_step(td))
    assert not td["done"].any()
    state, start = env.state_dict(), td.clone()
    assert twin.load_state_dict(state) is (kind != "drawing from torch")
    action = env.rand_action(td)["action"]
    expected = env.step(td.set("action", action))
    found = twin.step(start.set("action", action))
    env.close()
    twin.close()
    assert_equal(found["next"], expected["next"])


class RootReadingEnv(CountingEnv):
    """Reads the count from the root of what it is given, and declares no state."""

    def _step(self, tensordict):
        self.count = tensordict["observation"]
        return super()._step(tensordict)


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_step_is_given_the_root_as_it_was_left(make):
    lengths = [{"length": 2}, {"length": 3}]
    env = make(2, RootReadingEnv, create_env_kwargs=lengths, mp_start_method="fork")
    data = env.rollout(6, break_when_any_done=False)
    env.close()
    assert data["next", "observation"].squeeze(-1).tolist() == [[1, 2] * 3, [1, 2, 3] * 2]
