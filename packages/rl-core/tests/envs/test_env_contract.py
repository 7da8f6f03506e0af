"""The contract where environments are not simple: groups of agents, several actions and rewards, dynamic shapes."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Bounded, Composite, ContainerRunner, EnvBase, Unbounded, check_env_specs, step_mdp
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
