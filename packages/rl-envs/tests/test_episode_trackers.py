"""StepCounter, RewardSum and InitTracker: numbers by hand, groups of end flags, stored steps."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Categorical, Composite, EnvBase, TransformedEnv, Unbounded, check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import InitTracker, RewardSum, StepCounter


def flat(value):
    return value.flatten().tolist()


class Group(EnvBase):
    """Two agents with end flags and rewards of their own; agent 1 of each ends at step 2, the root at step 4."""

    def __init__(self):
        super().__init__()
        flag = Categorical(2, shape=(2, 1), dtype=torch.bool)
        self.observation_spec = Composite(agents=Composite(observation=Unbounded((2, 1))))
        self.full_action_spec = Composite(agents=Composite(action=Unbounded((2, 1))))
        self.full_reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1))), reward=Unbounded((1,)))
        self.done_spec = Composite(agents=Composite(done=flag, terminated=flag), done=flag[0], terminated=flag[0])

    def _reset(self, tensordict=None, **kwargs):
        self.count = 0
        return TensorDict(agents=TensorDict(observation=torch.zeros(2, 1)))

    def _step(self, tensordict):
        self.count += 1
        ended = torch.tensor([[False], [self.count % 2 == 0]])
        agents = TensorDict(observation=torch.zeros(2, 1), reward=torch.tensor([[1.0], [2.0]]), terminated=ended)
        return TensorDict(agents=agents, reward=torch.ones(1), terminated=torch.tensor([self.count >= 4]))


# -------------------------------------------------------------------- StepCounter
@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
def test_steps_are_counted_from_reset_to_reset(env):
    data = TransformedEnv(env(length=9), StepCounter(max_steps=3)).rollout(5, break_when_any_done=False)
    assert flat(data["step_count"]) == [0, 1, 2, 0, 1] and flat(data["next", "step_count"]) == [1, 2, 3, 1, 2]
    assert flat(data["next", "truncated"]) == flat(data["next", "done"]) == [False, False, True, False, False]
    assert not data["next", "terminated"].any() and data["step_count"].dtype == torch.int64


@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
def test_a_truncation_of_the_environment_is_kept(env):
    data = TransformedEnv(env(length=2, truncate=True), StepCounter(max_steps=5)).rollout(5)
    assert flat(data["next", "truncated"]) == [False, True]


@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
def test_another_flag_is_an_observation_only(env):
    counter = StepCounter(max_steps=2, truncated_key="late", update_done=False)
    data = TransformedEnv(env(length=4), counter).rollout(9)
    assert flat(data["next", "late"]) == [False, True, True, True] and not data["late"][0]
    assert flat(data["next", "done"]) == [False, False, False, True]


def test_every_group_has_its_count():
    env = TransformedEnv(Group(), StepCounter())
    data = env.rollout(4, break_when_any_done=False)
    assert data["agents", "step_count"].shape == (4, 2, 1) and flat(data["step_count"]) == [0, 1, 2, 3]


def test_a_limit_cuts_every_group():
    data = TransformedEnv(Group(), StepCounter(max_steps=3)).rollout(9, break_when_any_done=False)
    check_env_specs(TransformedEnv(Group(), StepCounter(max_steps=3)))
    assert data["next", "agents", "truncated"][2].all() and data["next", "agents", "done"][2].all()


def test_mistakes_in_a_counter_are_named():
    with pytest.raises(ValueError, match="at least 1; got 0"):
        StepCounter(max_steps=0)
    for wrong in ({"update_done": False}, {"truncated_key": "late"}):
        with pytest.raises(ValueError, match="another name together with update_done=False"):
            StepCounter(3, **wrong)
    env = TransformedEnv(CountingEnv(), StepCounter()).append_transform(StepCounter())
    with pytest.raises(EnvError, match="already has 'step_count'"):
        env.reset()["step_count"]
        env.observation_spec  # noqa: B018
    td = CountingEnv().reset()
    with pytest.raises(KeyMissingError, match="needs 'step_count' at the root; reset through"):
        env = TransformedEnv(CountingEnv(), StepCounter())
        env.step(env.rand_action(td))


# -------------------------------------------------------------------- RewardSum
@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
def test_rewards_are_summed_from_reset_to_reset(env):
    data = TransformedEnv(env(length=3), RewardSum()).rollout(5, break_when_any_done=False)
    assert flat(data["next", "reward"]) == [1, 2, 3, 1, 2]
    assert flat(data["episode_reward"]) == [0, 1, 3, 0, 1]
    assert flat(data["next", "episode_reward"]) == [1, 3, 6, 1, 3]


def test_sums_may_be_declared_as_rewards():
    env = TransformedEnv(CountingEnv(length=3), RewardSum(reward_spec=True))
    assert env.reward_keys == ["reward", "episode_reward"] and "episode_reward" not in env.observation_keys
    assert flat(env.rollout(5)["next", "episode_reward"]) == [1, 3, 6]


def test_nested_rewards_have_sums_beside_them():
    env = TransformedEnv(Group(), RewardSum())
    check_env_specs(env)
    data = env.rollout(3, break_when_any_done=False)
    assert flat(data["next", "episode_reward"]) == [1, 2, 3]
    assert data["next", "agents", "episode_reward"][:, 1].flatten().tolist() == [2, 4, 6]


def test_out_keys_name_the_sums():
    data = TransformedEnv(CountingEnv(3), RewardSum(in_keys=["reward"], out_keys=["total"])).rollout(3)
    assert flat(data["next", "total"]) == [1, 3, 6]
    with pytest.raises(ValueError, match="1 in_keys and 2 out_keys"):
        RewardSum(in_keys=["reward"], out_keys=["a", "b"])


def test_a_reward_that_is_not_there_is_named():
    env = TransformedEnv(CountingEnv(3), RewardSum(in_keys=["gain"]))
    with pytest.raises(KeyMissingError, match="needs the reward 'gain'; the environment has 'reward'"):
        env.reset()


# -------------------------------------------------------------------- InitTracker
@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
def test_first_steps_are_marked_at_the_root_only(env):
    data = TransformedEnv(env(length=2), InitTracker()).rollout(5, break_when_any_done=False)
    assert flat(data["is_init"]) == [True, False, True, False, True] and not data["next", "is_init"].any()


def test_a_second_tracker_needs_another_name():
    with pytest.raises(EnvError, match="already has 'is_init'"):
        TransformedEnv(TransformedEnv(CountingEnv(), InitTracker()), InitTracker()).observation_spec  # noqa: B018


# -------------------------------------------------------------------- stored steps
def stored():
    """Two rows of five steps; row 0 ends at step 1."""
    done = torch.zeros(2, 5, 1, dtype=torch.bool)
    done[0, 1] = True
    reward = torch.tensor([1.0, 2, 3, 4, 5]).expand(2, 5).unsqueeze(-1)
    return TensorDict(
        next=TensorDict(reward=reward, done=done, batch_size=[2, 5]), batch_size=[2, 5], names=[None, "time"]
    )


def test_stored_steps_are_counted_and_summed_afresh_after_an_end():
    counted, summed, marked = StepCounter()(stored()), RewardSum()(stored()), InitTracker()(stored())
    assert counted["step_count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert counted["next", "step_count"].squeeze(-1).tolist() == [[1, 2, 1, 2, 3], [1, 2, 3, 4, 5]]
    assert summed["episode_reward"].squeeze(-1).tolist() == [[0, 1, 0, 3, 7], [0, 1, 3, 6, 10]]
    assert summed["next", "episode_reward"].squeeze(-1).tolist() == [[1, 3, 3, 7, 12], [1, 3, 6, 10, 15]]
    assert marked["is_init"].squeeze(-1).tolist() == [[True, False, True, False, False], [True] + [False] * 4]


def test_time_is_found_by_its_name():
    data = stored().transpose(0, 1).contiguous()
    data.names = ["time", None]
    assert torch.equal(StepCounter()(data)["step_count"], StepCounter()(stored())["step_count"].transpose(0, 1))


def test_a_second_batch_goes_on_where_the_first_one_stopped():
    whole = RewardSum()(StepCounter()(stored()))
    first, second = stored()[:, :3], stored()[:, 3:]
    first = RewardSum()(StepCounter()(first))
    for key in ("step_count", "episode_reward"):
        start = torch.zeros(2, 2, 1, dtype=first[key].dtype)
        start[:, 0] = first["next", key][:, -1]
        second.set(key, start)
    second = RewardSum()(StepCounter()(second))
    for key in ("step_count", "episode_reward"):
        assert torch.equal(torch.cat([first[key], second[key]], 1), whole[key])


def test_stored_steps_without_end_flags_are_refused():
    with pytest.raises(KeyMissingError, match=r"\('next', 'done'\)"):
        RewardSum()(TensorDict(next=TensorDict(reward=torch.zeros(3, 1), batch_size=[3]), batch_size=[3]))
