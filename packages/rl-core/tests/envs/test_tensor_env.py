"""TensorEnv: rollouts without containers give what the loop on TensorDicts gives."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import Binary, Bounded, Categorical, Composite, TransformedEnv, Unbounded, check_env_specs, checked_mode
from rl_core.envs.tensor_env import TensorEnv
from rl_core.errors import EnvError, PolicyError, SpecError


class Drift(TensorEnv):
    """x' = x + gain * action, reward -x'; ends where x reaches ``limit``, never by default."""

    def __init__(self, limit=None, first=0.0):
        super().__init__()
        self.limit, self.first = limit, first
        self.observation_spec = Composite(x=Unbounded(shape=(1,)))
        self.state_spec = Composite(x=Unbounded(shape=(1,)), constants=Composite(gain=Unbounded(shape=())))
        self.action_spec = Bounded(low=-1.0, high=1.0, shape=(1,))

    def _reset(self, tensordict=None, **kwargs):
        batch = self.batch_size if tensordict is None else tensordict.batch_size
        constants = TensorDict({"gain": torch.full(batch, 2.0)}, batch_size=batch)
        return TensorDict({"x": torch.full((*batch, 1), self.first), "constants": constants}, batch_size=batch)

    def _step_entries(self, entries):
        x = entries["x"] + entries["constants"].get("gain").unsqueeze(-1) * entries["action"]
        written = {"x": x, "reward": -x}
        return written if self.limit is None else {**written, "terminated": x.detach() >= self.limit}


def through_containers(env, *args, **kwargs):
    """A callback has to see TensorDicts."""
    return env.rollout(*args, callback=lambda env, td: None, **kwargs)


def start_of(env, batch):
    return env.reset(TensorDict({}, batch_size=batch))


def same(one, other):
    keys = set(one.keys(True, True))
    assert keys == set(other.keys(True, True)) and one.batch_size == other.batch_size and one.names == other.names
    assert all(torch.equal(one[key], other[key]) for key in keys)


def up(td_key="x"):
    """A module that always answers 1/2."""
    module = nn.Linear(1, 1)
    nn.init.zeros_(module.weight)
    nn.init.constant_(module.bias, 0.5)
    return TensorDictModule(module, [td_key], ["action"])


def test_its_specs_hold_alone_and_under_transforms():
    check_env_specs(Drift())
    check_env_specs(TransformedEnv(Drift()), tensordict=TensorDict({}, batch_size=[3]))


def test_positions_rewards_and_constants_are_those_of_the_formula():
    data = Drift().rollout(3, up())
    assert data["x"].flatten().tolist() == [0.0, 1.0, 2.0]
    assert data["next", "x"].flatten().tolist() == [1.0, 2.0, 3.0]
    assert data["next", "reward"].flatten().tolist() == [-1.0, -2.0, -3.0]
    assert data["constants", "gain"].tolist() == [2.0, 2.0, 2.0]
    assert not data["next", "done"].any() and data["next", "terminated"].shape == (3, 1)
    assert data.names == ["time"] and "reward" not in data


@pytest.mark.parametrize("batch", [[], [3]])
@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("stop", [True, False])
def test_a_seed_gives_the_rollout_that_containers_give(batch, limit, stop):
    rollouts = []
    for run in (Drift.rollout, through_containers):
        env = Drift(limit)
        start = start_of(env, batch)
        torch.manual_seed(0)
        rollouts.append(run(env, 20, auto_reset=False, tensordict=start, break_when_any_done=stop))
    same(*rollouts)
    assert (rollouts[0].shape[-1] < 20) == (limit is not None and stop)


@pytest.mark.parametrize(
    "policy",
    [
        up(),
        lambda x: 0.1 * x + 0.1,
        lambda td: td.set("action", 0.1 * td["x"] + 0.1).set("note", td["x"] + 10),
        TensorDictModule(lambda x: (x + 0.5, x, -x), ["x"], ["action", "note", "_"]),
    ],
    ids=["module", "function", "of a TensorDict", "extras"],
)
def test_a_policy_gives_the_rollout_that_containers_give(policy):
    same(Drift().rollout(4, policy), through_containers(Drift(), 4, policy))


def test_gradients_reach_the_policy_and_the_constants():
    policy, env = up(), Drift()
    start = env.reset()
    start["constants", "gain"] = gain = torch.tensor(2.0, requires_grad=True)
    env.rollout(2, policy, auto_reset=False, tensordict=start)["next", "reward"].sum().backward()
    # x1 = g b, x2 = 2 g b: the rewards add up to -3 g b, with b = 1/2; the weight's part is -g x1 = -2.
    assert gain.grad.item() == pytest.approx(-1.5) and policy.module.bias.grad.item() == pytest.approx(-6.0)
    assert policy.module.weight.grad.item() == pytest.approx(-2.0)


def test_ended_rows_start_again_and_the_others_go_on():
    env = Drift(limit=2.0)
    start = start_of(env, [2]).set("x", torch.tensor([[1.0], [-9.0]]))
    data = env.rollout(3, up(), auto_reset=False, tensordict=start, break_when_any_done=False)
    assert data["x"].squeeze(-1).tolist() == [[1.0, 0.0, 1.0], [-9.0, -8.0, -7.0]]
    assert data["next", "x"].squeeze(-1).tolist() == [[2.0, 1.0, 2.0], [-8.0, -7.0, -6.0]]
    assert data["next", "done"].squeeze(-1).tolist() == [[True, False, True], [False] * 3]


def test_no_two_entries_and_no_two_steps_share_memory():
    data = Drift().rollout(3, up())
    before = data.clone()
    data["x"].fill_(7)
    data["done"][0] = True
    data["constants", "gain"][1] = 9
    assert torch.equal(data["next"]["x"], before["next", "x"]) and not data["next", "done"].any()
    assert data["done"].flatten().tolist() == [True, False, False] and not data["terminated"].any()
    assert data["constants", "gain"].tolist() == [2.0, 9.0, 2.0]


def test_random_actions_keep_to_the_mask_of_the_moment():
    class Alternating(TensorEnv):
        def __init__(self):
            super().__init__()
            self.observation_spec = Composite(action_mask=Binary(2, dtype=torch.bool))
            self.state_spec = self.observation_spec
            self.action_spec = Categorical(2)

        def _reset(self, tensordict=None, **kwargs):
            return TensorDict({"action_mask": torch.tensor([True, False])})

        def _step_entries(self, entries):
            return {"action_mask": ~entries["action_mask"], "reward": torch.zeros(1)}

    assert Alternating().rollout(8)["action"].tolist() == [0, 1] * 4


def test_the_start_is_left_alone():
    env = Drift()
    start = env.reset()
    env.rollout(2, auto_reset=False, tensordict=start)
    assert "next" not in start and "action" not in start


def test_end_flags_of_steps_are_their_own():
    env = Drift()
    one = env.step(env.rand_action(env.reset()))
    two = env.step(env.rand_action(env.step_mdp(one)))
    one["next", "done"].fill_(True)
    assert not one["next", "terminated"] and not two["next", "done"]


def test_a_start_that_was_stepped_keeps_what_the_environment_does_not_write():
    env = Drift()
    start = env.reset().set("next", TensorDict({"memory": torch.ones(1)}))
    assert env.rollout(1, auto_reset=False, tensordict=start)["next", "memory"].item() == 1


def test_entries_that_appear_after_the_first_step_are_kept_as_containers_keep_them():
    class Noted(Drift):
        def _step_entries(self, entries):
            return {**super()._step_entries(entries), "note": entries["x"] + 1}

    data = Noted().rollout(3, up())
    assert data["next", "note"].flatten().tolist() == [1.0, 2.0, 3.0]
    assert data[1]["note"].item() == 1 and "note" not in data[0]


@pytest.mark.parametrize("name", ["_step", "step"])
def test_a_subclass_that_changes_how_a_step_is_made_is_stepped_that_way(name):
    calls = []

    def counted(self, tensordict):
        calls.append(tensordict)
        return getattr(Drift, name)(self, tensordict)

    env = type("Counted", (Drift,), {name: counted})()
    env.rollout(3)
    assert len(calls) == 3


def test_the_first_step_is_validated():
    class Wrong(Drift):
        def _step_entries(self, entries):
            return {"x": entries["x"].double(), "reward": entries["x"]}

    with pytest.raises(EnvError, match=r"'x' has dtype torch.float64"):
        Wrong().rollout(2)


def test_a_policy_without_the_action_is_named():
    with pytest.raises(PolicyError, match="needs the action 'action'"):
        Drift().rollout(2, TensorDictModule(nn.Linear(1, 1), ["x"], ["act"]))


def test_checked_mode_looks_at_every_step():
    with checked_mode(), pytest.raises(SpecError, match="action"):
        Drift().rollout(4, TensorDictModule(lambda x: x + 0.5, ["x"], ["action"]))


def test_an_environment_without_step_entries_says_so():
    with pytest.raises(NotImplementedError, match="must define _step_entries"):
        TensorEnv().step(TensorDict({"action": torch.zeros(1)}))
