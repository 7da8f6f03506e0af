"""The contract where environments are not simple: groups of agents, several actions and rewards, dynamic shapes."""

import pytest
import torch
from tensordict import TensorDict, lazy_stack

from rl_core import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    ContainerRunner,
    EnvBase,
    NonTensor,
    TransformedEnv,
    Unbounded,
    check_env_specs,
    checked_mode,
    reset_rows,
    step_mdp,
)
from rl_core.errors import SpecError
from rl_core.testing import GroupCountingEnv


@pytest.mark.parametrize("batch", [(), (3,)])
def test_groups_keep_their_specs(batch):
    check_env_specs(GroupCountingEnv([2, 3], batch_size=batch))


def test_every_action_and_reward_has_a_key():
    env = GroupCountingEnv()
    assert env.action_keys == [("agents", "action"), "signal"]
    assert env.reward_keys == [("agents", "reward"), "team_reward"]
    assert env.reset_keys == ["_reset", ("agents", "_reset")]
    td = env.rand_action()
    assert td["agents", "action"].shape == (2, 1) and td["signal"].shape == ()
    with pytest.raises(KeyError, match="2 reward keys"):
        _ = env.reward_key


def test_an_agent_ends_before_the_others_and_the_root_with_the_last():
    data = GroupCountingEnv([1, 3]).rollout(9)
    nxt = data["next"]
    assert data.batch_size == (3,)
    assert nxt["done"].squeeze(-1).tolist() == [False, False, True]
    assert nxt["agents", "done"].squeeze(-1).tolist() == [[True, False], [True, False], [True, True]]
    assert nxt["agents", "reward"].squeeze(-1).tolist() == [[1, 1], [0, 2], [0, 3]]
    for prefix in ((), ("agents",)):
        ends = [nxt[(*prefix, name)] for name in ("done", "terminated", "truncated")]
        assert torch.equal(ends[0], ends[1] | ends[2])


def test_the_root_of_the_next_step_has_no_reward_and_keeps_the_group_together():
    env = GroupCountingEnv()
    root = env.step_mdp(env.rand_step())
    assert set(root.keys(True, True)) == {
        *(("agents", name) for name in ("observation", "action", "done", "terminated", "truncated")),
        *("signal", "done", "terminated", "truncated"),
    }
    free = step_mdp(
        env.rand_step(),
        reward_keys=env.reward_keys,
        action_keys=env.action_keys,
        done_keys=env.done_keys,
        exclude_done=True,
    )
    assert set(free.keys(True, True)) == {("agents", "observation")}


def test_rows_reset_with_their_groups():
    env = GroupCountingEnv([1, 2], batch_size=[2])
    td = env.step_mdp(env.rand_step())
    td["_reset"] = torch.tensor([[True], [False]])
    td = env.reset(td)
    assert td["agents", "observation"].squeeze(-1).tolist() == [[0, 0], [1, 1]]
    assert td["agents", "done"].squeeze(-1).tolist() == [[False, False], [True, False]]


def test_a_group_can_be_asked_to_reset_on_its_own():
    env = GroupCountingEnv([3, 3], batch_size=[2])
    td = env.step_mdp(env.rand_step())
    td["agents", "_reset"] = torch.tensor([[[True], [False]], [[False], [False]]])
    env.count = torch.zeros_like(env.count)
    td = env.reset(td)
    assert td["agents", "observation"].squeeze(-1).tolist() == [[0, 1], [1, 1]]
    assert ("agents", "_reset") not in td.keys(True)


def test_batches_of_groups_collect_through_ends():
    data = ContainerRunner(GroupCountingEnv([1, 2], batch_size=[2]), None, 4).run()
    assert data["agents", "observation"][0].squeeze(-1).tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert data["next", "agents", "observation"][0].squeeze(-1).tolist() == [[1, 1], [1, 2], [1, 1], [1, 2]]


class Growing(EnvBase):
    """One more number in every observation."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite({"numbers": Unbounded((-1,))})
        self.action_spec = Bounded(-1.0, 1.0, (1,))
        self.t = 0

    def _reset(self, tensordict=None, **kwargs):
        self.t = 1
        return TensorDict({"numbers": torch.ones(1)})

    def _step(self, tensordict):
        self.t += 1
        return TensorDict({"numbers": torch.ones(self.t), "reward": torch.zeros(1)})


def test_dynamic_dimensions_are_admitted_and_stay_ragged():
    env = Growing()
    check_env_specs(env)
    data = env.rollout(3)
    assert data.batch_size == (3,)
    assert [step["next", "numbers"].shape[0] for step in data.unbind(0)] == [2, 3, 4]


class Doors(EnvBase):
    """Three doors a room, of which each step locks another one; whoever tries a locked one breaks the game."""

    def __init__(self, batch_size=(), group=None):
        super().__init__(batch_size=batch_size)
        batch, self.group = self.batch_size, group
        place = (lambda name: name) if group is None else (lambda name: (group, name))
        self.keys = {name: place(name) for name in ("observation", "action", "action_mask")}
        self.observation_spec = Composite(
            {
                self.keys["observation"]: Unbounded(shape=(*batch, 1)),
                self.keys["action_mask"]: Binary(shape=(*batch, 3), dtype=torch.bool),
            },
            shape=batch,
        )
        self.full_action_spec = Composite({self.keys["action"]: Categorical(3, shape=batch)}, shape=batch)
        self.reward_spec = Unbounded(shape=(*batch, 1))

    def _now(self):
        mask = torch.ones(*self.batch_size, 3, dtype=torch.bool)
        mask[..., self.locked] = False
        return {
            self.keys["observation"]: torch.full((*self.batch_size, 1), float(self.locked)),
            self.keys["action_mask"]: mask,
        }

    def _reset(self, tensordict=None, **kwargs):
        self.locked = 0
        return TensorDict(self._now(), batch_size=self.batch_size)

    def _step(self, tensordict):
        assert (tensordict[self.keys["action"]] != self.locked).all(), "a locked door"
        self.locked = (self.locked + 1) % 3
        reward = torch.zeros(*self.batch_size, 1)
        return TensorDict({**self._now(), "reward": reward}, batch_size=self.batch_size)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("group", [None, "agents"])
def test_random_actions_and_checks_take_the_mask_of_the_moment(batch, group):
    torch.manual_seed(0)
    env = Doors(batch, group)
    data = env.rollout(60)  # the game asserts that no locked door is tried
    assert data.shape[-1] == 60
    check_env_specs(env)
    check_env_specs(TransformedEnv(Doors(batch, group), lambda td: td))


def test_checked_mode_refuses_an_action_that_its_mask_forbids():
    env = Doors()
    td = env.reset().set("action", torch.tensor(0))
    with checked_mode(), pytest.raises(SpecError, match="action 'action' is not in its spec"):
        env.step(td)


def test_a_fake_step_has_no_action_under_next():
    fake = GroupCountingEnv().fake_tensordict()
    assert fake.get(("agents", "action"), None) is not None
    assert fake.get(("next", "agents", "action"), None) is None


class Texts(EnvBase):
    """Each row's text grows by one token a step; row i ends at i + 2 tokens. Tokens are ragged, as a lazy stack."""

    def __init__(self):
        super().__init__(batch_size=[2])
        self.observation_spec = Composite({"tokens": NonTensor(shape=(2,), batched=True)}, shape=(2,))
        self.action_spec = Categorical(9, shape=(2,))
        self.reward_spec = Unbounded(shape=(2, 1))
        self.rows = [[], []]

    def _tokens(self):
        return lazy_stack([TensorDict({"ids": torch.tensor(row)}, []) for row in self.rows])

    def _reset(self, tensordict=None, **kwargs):
        rows = reset_rows(tensordict)
        self.rows = [[0] if rows is None or rows[i] else row for i, row in enumerate(self.rows)]
        return TensorDict({"tokens": self._tokens()}, [2])

    def _step(self, tensordict):
        self.rows = [[*row, int(a)] for row, a in zip(self.rows, tensordict["action"], strict=True)]
        ended = torch.tensor([[len(row) >= i + 2] for i, row in enumerate(self.rows)])
        return TensorDict({"tokens": self._tokens(), "reward": torch.zeros(2, 1), "terminated": ended}, [2])


def ids(td):
    return [row["ids"].tolist() for row in td["tokens"].unbind(0)]


def test_ragged_rows_pass_through_steps_and_partial_resets():
    env = Texts()
    td = env.reset()
    td["action"] = torch.tensor([1, 2])
    stepped, after = env.step_and_maybe_reset(td)
    assert ids(stepped["next"]) == [[0, 1], [0, 2]]
    assert ids(after) == [[0], [0, 2]]  # row 0 ended
    after["action"] = torch.tensor([3, 4])
    stepped, after = env.step_and_maybe_reset(after)
    assert ids(stepped["next"]) == [[0, 3], [0, 2, 4]] and ids(after) == [[0], [0]]
    after["_reset"] = torch.tensor([[False], [True]])
    env.rows = [[7], [8, 8]]
    after["tokens"] = env._tokens()
    assert ids(env.reset(after)) == [[7], [0]]


def test_a_second_step_replaces_ragged_rows_that_are_longer_now():
    env = Texts()
    td = env.reset()
    td["action"] = torch.tensor([1, 2])
    env.step(td)
    env.step(td)  # "next" is there already, with shorter rows
    assert ids(td["next"]) == [[0, 1, 1], [0, 2, 2]]
