"""Members of a batch that are stepped by one call have the numbers that each has alone."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Bounded, Composite, TensorEnv, Unbounded, spawn_seeds
from rl_core.errors import KeyMissingError
from rl_envs import AcrobotEnv, CartPoleEnv, MountainCarEnv, ParallelEnv, PendulumEnv, SerialEnv

NATIVE = [PendulumEnv, CartPoleEnv, AcrobotEnv, MountainCarEnv]


class Doubling(TensorEnv):
    """Doubles what it holds; counts the calls of its step in a list that all of its kind share."""

    calls: list[int] = []

    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = factor
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.state_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    @property
    def stack_key(self):
        return self.factor

    def _reset(self, tensordict=None, **kwargs):
        batch = torch.Size([]) if tensordict is None else tensordict.batch_size
        return TensorDict({"x": torch.rand(*batch, 1)}, batch_size=batch)

    def _step_entries(self, entries):
        self.calls.append(entries["x"].shape[0])
        x = entries["x"] * self.factor
        return {"x": x, "reward": x + entries["action"]}


class Heir(Doubling):
    """Inherits the key, which does not count for it."""


def calls_of_a_step(env):
    """How often a step of the batch called the environments' steps, once their first one was checked."""
    td = env.step_mdp(env.rand_step())
    Doubling.calls.clear()
    env.rand_step(td)
    env.close()
    return len(Doubling.calls)


def test_members_with_one_key_are_stepped_by_one_call():
    assert calls_of_a_step(SerialEnv(3, Doubling)) == 1


@pytest.mark.parametrize(
    "env",
    [
        lambda: SerialEnv(3, Doubling, create_env_kwargs=[{"factor": 2.0}, {"factor": 2.0}, {"factor": 3.0}]),
        lambda: SerialEnv(3, Heir),
        lambda: SerialEnv(3, lambda: Doubling(factor=None)),
    ],
    ids=["other keys", "an inherited key", "no key"],
)
def test_all_others_are_stepped_one_by_one(env):
    batch = env()
    for member in batch.members.envs:
        member.factor = member.factor or 1.0
    assert calls_of_a_step(batch) == 3


def test_an_attribute_that_is_set_later_counts():
    env = SerialEnv(2, Doubling)
    td = env.step_mdp(env.rand_step())
    env.set_attr("factor", [2.0, 5.0])
    before = td["x"].clone()
    assert torch.equal(env.rand_step(td)["next", "x"], before * torch.tensor([[2.0], [5.0]]))


@pytest.mark.parametrize("make", NATIVE)
def test_a_row_has_the_bits_of_its_environment_alone(make):
    """67, so that vectorised arithmetic has full vectors and a rest; every third alone, with its seed and actions."""
    batch = SerialEnv(67, make)
    batch.set_seed(2)
    torch.manual_seed(0)
    data = batch.rollout(12, break_when_any_done=False)
    for index in range(0, 67, 3):
        env, actions = make(), iter(data["action"][index])
        env.set_seed(spawn_seeds(2, 67)[index])
        alone = env.rollout(12, lambda td, a=actions: td.set("action", next(a)), break_when_any_done=False)
        for key in alone.keys(True, True):
            assert torch.equal(data[index].get(key), alone.get(key)), key


@pytest.mark.parametrize("make", [CartPoleEnv, AcrobotEnv])
def test_several_processes_give_the_bits_of_one_call(make):
    found = []
    for env in (SerialEnv(5, make), ParallelEnv(5, make, envs_per_worker=2, mp_start_method="fork")):
        env.set_seed(1)
        torch.manual_seed(0)
        found.append(env.rollout(40, break_when_any_done=False))
        env.close()
    assert (found[0] == found[1]).all()
    assert make is AcrobotEnv or found[0]["next", "done"].any()


def test_members_of_other_constants_keep_them():
    """Constants travel in the TensorDict: gravity 10 and 2 at an angle of one half, without speed or torque."""
    strong, weak = PendulumEnv.gen_params(g=10.0), PendulumEnv.gen_params(g=2.0)
    env = SerialEnv(2, PendulumEnv, create_env_kwargs=[{"td_params": strong}, {"td_params": weak}])
    td = env.reset().set("action", torch.zeros(2, 1))
    for _ in range(2):
        td["th"], td["thdot"] = torch.full((2,), 0.5), torch.zeros(2)
        stepped = env.step(td)
    expected = 1.5 * torch.tensor([10.0, 2.0]) * torch.tensor(0.5).sin() * 0.05
    torch.testing.assert_close(stepped["next", "thdot"], expected)


def test_gradients_pass_through_one_call():
    env = SerialEnv(3, PendulumEnv)
    td = env.step_mdp(env.rand_step())
    action = torch.zeros(3, 1, requires_grad=True)
    env.step(td.set("action", action))["next", "thdot"].sum().backward()
    torch.testing.assert_close(action.grad, torch.full((3, 1), 3 * 0.05))


def test_an_error_of_the_one_call_is_its_own():
    env = SerialEnv(2, PendulumEnv)
    td = env.step_mdp(env.rand_step())
    with pytest.raises(KeyMissingError, match=r"start with td = env.reset\(\)"):
        env.rand_step(td.exclude("th"))
