"""What ends, counts, rewards and interrupts episodes: truncation, targets, skips, other policies, self-resets."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Compose, Composite, TransformedEnv, Unbounded, check_env_specs, supports_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv, TransformKit, overrides_check
from rl_envs import (
    AutoResetEnv,
    AutoResetTransform,
    ConditionalPolicySwitch,
    ConditionalSkip,
    ObservationNorm,
    RandomTruncationTransform,
    RenameTransform,
    RewardSum,
    StepCounter,
    SuccessReward,
    TargetReturn,
    TerminateTransform,
    Timer,
    TrajCounter,
    UnaryTransform,
)

KINDS = [CountingEnv, ArrayCountingEnv]


class OurKit(TransformKit):
    distribution = "rl-envs"


class TestTargetReturnKit(OurKit):
    offline = True
    needs = ("reward", "target_return")

    def make_transform(self):
        return TargetReturn(10.0)


class TestConstantTargetKit(OurKit):
    offline = True

    def make_transform(self):
        return TargetReturn(10.0, "constant")


class TestTerminateKit(OurKit):
    def make_transform(self):
        return TerminateTransform(lambda td: td["observation"] >= 4)


class TestRandomTruncationKit(OurKit):
    needs = ()
    statistics = ()

    def make_transform(self):
        return Compose(StepCounter(), RandomTruncationTransform(4, 4, first_episode_prob=0.0))


class TestSuccessKit(OurKit):
    needs = ()

    def make_transform(self):
        big = UnaryTransform(["observation"], ["success"], fn=lambda x: x >= 3)
        return Compose(big, SuccessReward(scale=2.0))


class TestTrajCounterKit(OurKit):
    needs = ("traj_count",)
    statistics = ()

    def make_transform(self):
        return TrajCounter()

    @overrides_check(reason="a row that begins anew has another number than one that begins first")
    def test_a_reset_of_one_row_leaves_the_others_alone(self):
        env = TransformedEnv(self.make_env(), TrajCounter())
        td = env.step_mdp(env.step(env.rand_action(env.reset())))
        td["_reset"] = torch.tensor([[False], [True], [False]])
        assert env.reset(td)["traj_count"].flatten().tolist() == [0, 3, 2]

    @overrides_check(reason="numbers go on from rollout to rollout, each environment having its own")
    def test_a_saved_state_goes_on_in_another_transform(self):
        first, second = (TransformedEnv(self.make_env(), TrajCounter()) for _ in range(2))
        first.reset()
        second.load_state_dict(first.state_dict())
        assert second.reset()["traj_count"].flatten().tolist() == [3, 4, 5]


class TestSkipKit(OurKit):
    def make_transform(self):
        return ConditionalSkip(lambda td: False)


class TestSwitchKit(OurKit):
    def make_transform(self):
        return ConditionalPolicySwitch(lambda td: td.set("action", torch.zeros(*td.batch_size, 1)), lambda td: False)


# -------------------------------------------------------------------- TargetReturn
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mode", "root", "nxt"), [("reduce", [9, 8, 6, 9, 8], [8, 6, 3, 8, 6]), ("constant", [9] * 5, [9] * 5)]
)
def test_what_is_still_to_be_earned(kind, mode, root, nxt):
    env = TransformedEnv(kind(length=3, batch_size=[2]), TargetReturn(9.0, mode))  # rewards 1, 2, 3
    data = env.rollout(5, break_when_any_done=False)
    assert data["target_return"][1].flatten().tolist() == root
    assert data["next", "target_return"][1].flatten().tolist() == nxt


def test_each_reward_of_a_group_has_its_target():
    env = TransformedEnv(
        GroupCountingEnv([1, 3]),
        TargetReturn(5.0, in_keys=[("agents", "reward"), "team_reward"], out_keys=[("agents", "goal"), "goal"]),
    )
    check_env_specs(env)
    data = env.rollout(9)
    assert data["next", "agents", "goal"].squeeze(-1).tolist() == [[4, 4], [4, 2], [4, -1]]
    assert data["next", "goal"].flatten().tolist() == [3, 1, -2]
    stored = TargetReturn(5.0, in_keys=["team_reward"], out_keys=["goal"])(GroupCountingEnv([1, 3]).rollout(9))
    assert stored["next", "goal"].flatten().tolist() == [3, 1, -2]


def test_faulty_targets_are_refused():
    with pytest.raises(ValueError, match="reduce"):
        TargetReturn(1.0, "other")
    with pytest.raises(ValueError, match="one out key for each in key"):
        TargetReturn(1.0, in_keys=["a", "b"])
    with pytest.raises(KeyMissingError, match="TargetReturn needs the reward 'nope'"):
        _ = TransformedEnv(CountingEnv(), TargetReturn(1.0, in_keys=["nope"])).observation_spec


# -------------------------------------------------------------------- TerminateTransform
@pytest.mark.parametrize("batch", [[], [2]])
@pytest.mark.parametrize("shape", ["row", "column"])
def test_an_episode_ends_where_the_condition_holds(batch, shape):
    def stop(td):
        return td["observation"] >= 3 if shape == "column" else (td["observation"] >= 3).squeeze(-1)

    env = TransformedEnv(CountingEnv(length=9, batch_size=batch, truncate=True), TerminateTransform(stop))
    data = env.rollout(7, break_when_any_done=False).reshape(-1, 7)[0]
    assert data["observation"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert torch.equal(data["next", "terminated"], data["next", "done"]) and not data["next", "truncated"].any()
    assert data["next", "done"].flatten().tolist() == [False, False, True, False, False, True, False]


def test_the_end_of_the_task_ends_it_for_every_agent():
    env = TransformedEnv(GroupCountingEnv([9, 9]), TerminateTransform(lambda td: td["team_reward"] >= 4))
    data = env.rollout(9)
    assert (
        data.shape == (2,)
        and data["next", "agents", "terminated"][-1].all()
        and data["next", "agents", "done"][-1].all()
    )


def test_a_condition_of_another_shape_is_refused():
    env = TransformedEnv(CountingEnv(batch_size=[2]), TerminateTransform(lambda td: torch.ones(3, dtype=torch.bool)))
    with pytest.raises(EnvError, match=r"shape \(3,\)"):
        env.rollout(1)
    with pytest.raises(ValueError, match="write_done"):
        TerminateTransform(lambda td: True, write_done=False)


# -------------------------------------------------------------------- SuccessReward
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [[], [2]])
def test_success_alone_is_rewarded(kind, batch):
    for fn in (lambda x: x >= 3, lambda x: (x >= 3).squeeze(-1)):
        flag = UnaryTransform(["observation"], ["ok"], fn=fn)
        env = TransformedEnv(kind(length=9, batch_size=batch), Compose(flag, SuccessReward("ok", scale=0.5)))
        assert env.rollout(4)["next", "reward"].reshape(-1, 4)[0].tolist() == [0, 0, 0.5, 0.5]
        check_env_specs(env)


def test_success_counts_in_stored_steps_and_is_named_where_absent():
    data = TensorDict({("next", "success"): torch.tensor([True, False])}, batch_size=[2])
    assert SuccessReward()(data)["next", "reward"].tolist() == [[1.0], [0.0]]
    with pytest.raises(KeyMissingError, match=r"needs the observation 'success'; .*'observation'.*success_key"):
        _ = TransformedEnv(CountingEnv(), SuccessReward()).reward_spec
    with pytest.raises(KeyMissingError, match=r"SuccessReward needs \('next', 'success'\).*success_key"):
        SuccessReward()(TensorDict(batch_size=[2]))
    env = TransformedEnv(
        GroupCountingEnv(), UnaryTransform([("agents", "observation")], [("agents", "ok")], fn=lambda x: x > 1)
    )
    env.append_transform(SuccessReward(("agents", "ok"), ("agents", "reward")))
    assert env.rollout(2)["next", "agents", "reward"].squeeze(-1).tolist() == [[0, 0], [1, 1]]


# -------------------------------------------------------------------- RandomTruncationTransform
def lengths(env, steps=400):
    done = env.rollout(steps, break_when_any_done=False)["next", "done"].reshape(-1, steps)
    found = []
    for row in done:
        ends = row.nonzero().flatten()
        found.append(torch.cat([ends[:1] + 1, ends.diff()]).tolist())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_first_episodes_spread_out_and_later_ones_have_the_longest_horizon(kind):
    torch.manual_seed(0)
    env = TransformedEnv(kind(length=999, batch_size=[40]), Compose(StepCounter(), RandomTruncationTransform(3, 6)))
    rows = lengths(env, 30)
    assert {row[0] for row in rows} == {1, 2, 3, 4, 5, 6}
    assert {n for row in rows for n in row[1:]} == {6}
    data = env.rollout(9, break_when_any_done=False)
    assert not data["next", "terminated"].any() and torch.equal(data["next", "truncated"], data["next", "done"])


@pytest.mark.parametrize("kind", KINDS)
def test_later_horizons_are_drawn_with_a_chance(kind):
    torch.manual_seed(0)
    cut = RandomTruncationTransform(3, 6, prob=1.0, first_episode_prob=0.0)
    (row,) = lengths(TransformedEnv(kind(length=999), Compose(StepCounter(), cut)))
    assert row[0] == 6 and set(row[1:]) == {3, 4, 5, 6}
    half = RandomTruncationTransform(1, 10, prob=0.5)
    (row,) = lengths(TransformedEnv(kind(length=999), Compose(StepCounter(), half)), 1200)
    assert 0.4 < sum(n == 10 for n in row) / len(row) < 0.7  # 1/2 + 1/2 * 1/10


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_end_comes_first(kind):
    env = TransformedEnv(
        kind(length=3), Compose(StepCounter(), RandomTruncationTransform(5, 5, first_episode_prob=0.0))
    )
    data = env.rollout(6, break_when_any_done=False)
    assert data["next", "terminated"].flatten().tolist() == [False, False, True] * 2
    assert not data["next", "truncated"].any()


def test_a_count_in_a_group_cuts_that_group():
    env = TransformedEnv(
        GroupCountingEnv([9, 9]),
        Compose(
            StepCounter(),
            RandomTruncationTransform(2, 2, first_episode_prob=0.0, step_count_key=("agents", "step_count")),
        ),
    )
    check_env_specs(env)
    data = env.rollout(3)
    assert data["next", "agents", "truncated"].squeeze(-1).tolist()[:2] == [[False, False], [True, True]]
    assert not data["next", "truncated"].any()


def test_a_count_at_the_root_cuts_every_group():
    env = TransformedEnv(
        GroupCountingEnv([9, 9]), Compose(StepCounter(), RandomTruncationTransform(2, 2, first_episode_prob=0.0))
    )
    data = env.rollout(9)
    assert data.shape == (2,) and data["next", "agents", "truncated"][-1].all() and data["next", "truncated"][-1].all()


def test_a_partial_reset_draws_for_its_rows_alone():
    torch.manual_seed(0)
    cut = RandomTruncationTransform(1, 1000, prob=1.0)
    env = TransformedEnv(CountingEnv(length=9, batch_size=[3]), Compose(StepCounter(), cut))
    td = env.reset()
    before = cut._horizon.clone()
    td["_reset"] = torch.tensor([[False], [True], [False]])
    env.reset(td)
    assert (cut._horizon != before).flatten().tolist() == [False, True, False]


def test_without_a_counter_the_cure_is_named():
    with pytest.raises(EnvError, match=r"Put a StepCounter ahead"):
        TransformedEnv(CountingEnv(), RandomTruncationTransform(1, 2)).rollout(2)
    for bad in ((0, 3), (4, 3)):
        with pytest.raises(ValueError, match="min_horizon"):
            RandomTruncationTransform(*bad)
    with pytest.raises(ValueError, match="beside the count"):
        RandomTruncationTransform(1, 2, done_key=("agents", "done"))


# -------------------------------------------------------------------- TrajCounter and Timer
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_numbered_in_the_order_of_their_resets(kind):
    env = TransformedEnv(kind(length=[2, 3], batch_size=[2]), TrajCounter())
    data = env.rollout(6, break_when_any_done=False)
    assert data["traj_count"].squeeze(-1).tolist() == [[0, 0, 2, 2, 4, 4], [1, 1, 1, 3, 3, 3]]
    assert torch.equal(data["next", "traj_count"], data["traj_count"])
    assert env.reset()["traj_count"].flatten().tolist() == [5, 6]
    check_env_specs(env)


def test_stored_episodes_are_numbered_row_by_row():
    count, data = TrajCounter("id"), CountingEnv(length=[2, 3], batch_size=[2]).rollout(4, break_when_any_done=False)
    assert count(data.clone())["id"].squeeze(-1).tolist() == [[0, 0, 1, 1], [2, 2, 2, 3]]
    assert count(data.clone())["id"].flatten()[0].item() == 4


def test_times_are_written_where_they_were_spent():
    env = TransformedEnv(CountingEnv(length=2, batch_size=[2]), Timer())
    check_env_specs(env)
    data = env.rollout(4, break_when_any_done=False)
    assert data["next", "time_step"].shape == (2, 4) and (data["next", "time_step"] > 0).all()
    assert (data["next", "time_policy"] > 0).all() and (data["next", "time_reset"] == 0).all()
    assert (data["time_reset"][:, 2] > 0).all() and (data["time_step"][:, 0] == 0).all()
    with pytest.raises(ValueError, match="three entries"):
        Timer(["a"])
    assert Timer(time_key="t").out_keys == ["t_step", "t_policy", "t_reset"]


# -------------------------------------------------------------------- ConditionalSkip
class Steps(CountingEnv):
    taken = 0

    def _step(self, tensordict):
        self.taken += 1
        return super()._step(tensordict)


@pytest.mark.parametrize("batch", [[], [2]])
def test_a_skipped_step_leaves_the_simulator_alone(batch):
    env = TransformedEnv(Steps(length=9, batch_size=batch), ConditionalSkip(lambda td: td["action"] < 0))
    td = env.reset()
    for value, observed, reward in ((1.0, 1, 1), (-1.0, 1, 0), (-1.0, 1, 0), (1.0, 2, 2)):
        td = env.step(td.set("action", torch.full((*batch, 1), value)))
        assert td["next", "observation"].flatten().unique().tolist() == [observed]
        assert td["next", "reward"].flatten().unique().tolist() == [reward]
        td = env.step_mdp(td)
    assert env.base.taken == 2


def test_transforms_ahead_do_not_see_a_skipped_step_and_those_after_it_do():
    env = TransformedEnv(
        Steps(length=9),
        Compose(
            StepCounter(step_count_key="inner"),
            ObservationNorm(0.0, 2.0),
            ConditionalSkip(lambda td: td["outer"] == 1),
            ObservationNorm(0.0, 5.0),
            StepCounter(step_count_key="outer"),
        ),
    )
    data = env.rollout(4)
    assert data["next", "observation"].flatten().tolist() == [10, 10, 20, 30]
    assert data["next", "inner"].flatten().tolist() == [1, 1, 2, 3]
    assert data["next", "outer"].flatten().tolist() == [1, 2, 3, 4]
    check_env_specs(env)


def test_rows_that_step_together_cannot_be_skipped_one_by_one():
    env = TransformedEnv(CountingEnv(batch_size=[2]), ConditionalSkip(lambda td: torch.tensor([True, False])))
    with pytest.raises(EnvError, match=r"1 of the 2 rows.*SerialEnv"):
        env.rollout(1)


class Stateless(CountingEnv):
    """Adds one to the observation that it is given."""

    batch_locked = False

    def __init__(self):
        super().__init__(length=9)
        self.state_spec = Composite(observation=Unbounded((1,)))

    def _reset(self, tensordict=None, **kwargs):
        size = torch.Size([]) if tensordict is None else tensordict.batch_size
        return TensorDict(observation=torch.zeros(*size, 1), batch_size=size)

    def _step(self, tensordict):
        value = tensordict["observation"] + 1
        return TensorDict(
            observation=value, reward=value.clone(), terminated=value >= 9, batch_size=tensordict.batch_size
        )


def test_rows_of_a_stateless_environment_are_skipped_one_by_one():
    env = TransformedEnv(Stateless(), ConditionalSkip(lambda td: torch.tensor([True, False])))
    td = env.reset(TensorDict(batch_size=[2])).set("action", torch.zeros(2, 1))
    td = env.step(td)
    assert td["next", "observation"].flatten().tolist() == [0, 1] and td["next", "reward"].flatten().tolist() == [0, 1]


# -------------------------------------------------------------------- ConditionalPolicySwitch
class Recorded(CountingEnv):
    seen = ()

    def _step(self, tensordict):
        self.seen = (*self.seen, tensordict["action"].flatten()[0].item())
        return super()._step(tensordict)


def other(td):
    return td.set("action", torch.full((*td.batch_size, 1), -1.0))


def test_the_other_policy_takes_every_second_step():
    env = TransformedEnv(Recorded(length=5), ConditionalPolicySwitch(other, lambda td: td["observation"] % 2 == 1))
    data = env.rollout(9, lambda observation: torch.ones(1))
    assert data["observation"].flatten().tolist() == [0, 2, 4]
    assert data["next", "reward"].flatten().tolist() == [2, 4, 5]  # the last one is ours: it ended the episode
    assert env.base.seen == (1, -1, 1, -1, 1) and (data["action"] == 1).all()
    check_env_specs(env)


def test_the_other_policy_may_begin():
    env = TransformedEnv(Recorded(length=9), ConditionalPolicySwitch(other, lambda td: td["observation"] % 2 == 0))
    td = env.reset()
    assert td["observation"].item() == 1 and "reward" not in td
    assert env.step(env.rand_action(td))["next", "observation"].item() == 3


def test_counters_ahead_see_both_steps():
    switch = ConditionalPolicySwitch(other, lambda td: td["observation"] % 2 == 1)
    env = TransformedEnv(CountingEnv(length=9), Compose(StepCounter(), switch, RewardSum()))
    data = env.rollout(3)
    assert data["next", "step_count"].flatten().tolist() == [2, 4, 6]
    assert data["next", "episode_reward"].flatten().tolist() == [2, 6, 12]


def test_rows_that_step_together_cannot_switch_one_by_one():
    switch = ConditionalPolicySwitch(other, lambda td: td["observation"] >= torch.tensor([[1.0], [5.0]]))
    env = TransformedEnv(CountingEnv(length=9, batch_size=[2]), switch)
    with pytest.raises(EnvError, match=r"1 of the 2 rows.*SerialEnv"):
        env.rollout(1)


# -------------------------------------------------------------------- AutoResetEnv
class SelfResetting(CountingEnv):
    resets = 0

    def _reset(self, tensordict=None, **kwargs):
        self.resets += 1
        return super()._reset(tensordict)

    def _step(self, tensordict):
        result = super()._step(tensordict)
        ended = result["terminated"]
        self.count = torch.where(ended, 0, self.count)
        return result.set("observation", self.count.clone())


@pytest.mark.parametrize("batch", [[], [2]])
def test_a_simulator_that_resets_itself_is_reset_once(batch):
    env = AutoResetEnv(SelfResetting(length=[2, 3] if batch else 2, batch_size=batch))
    data = env.rollout(6, break_when_any_done=False)
    row = data[0] if batch else data
    assert row["observation"].flatten().tolist() == [0, 1, 0, 1, 0, 1] and env.base.resets == 1
    last = row["next", "observation"].flatten()
    assert last.isnan().tolist() == [False, True] * 3 and last[::2].tolist() == [1, 1, 1]
    assert not supports_rows(env)


def test_what_stands_in_for_the_lost_observation_can_be_chosen():
    env = AutoResetEnv(SelfResetting(length=2), AutoResetTransform(fill_float=-7.0))
    assert env.rollout(2)["next", "observation"].flatten().tolist() == [1, -7]
    kept = AutoResetEnv(SelfResetting(length=2), AutoResetTransform(replace=False))
    assert kept.rollout(2)["next", "observation"].flatten().tolist() == [1, 0]


def test_transforms_are_appended_after_it_and_start_episodes_too():
    env = AutoResetEnv(SelfResetting(length=[2, 3], batch_size=[2])).append_transform(StepCounter())
    data = env.rollout(5, break_when_any_done=False)
    assert data["step_count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    env.insert_transform(0, RenameTransform(["observation"], ["o"]))
    with pytest.raises(EnvError, match="first transform"):
        env.reset()


def test_a_reset_that_nobody_announced_is_a_real_one():
    env = AutoResetEnv(SelfResetting(length=5))
    td = env.step_mdp(env.rand_step())
    assert env.reset(td)["observation"].item() == 0 and env.base.resets == 2


def test_it_is_not_used_elsewhere():
    with pytest.raises(EnvError, match="AutoResetEnv"):
        TransformedEnv(SelfResetting(), AutoResetTransform())
    own = SelfResetting()
    own.auto_reset = True
    with pytest.raises(EnvError, match="already"):
        AutoResetEnv(own)
