"""RenameTransform, ExcludeTransform, SelectTransform, RemoveEmptySpecs."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Compose, Composite, TransformedEnv, Unbounded, check_env_specs, supports_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv, TransformKit
from rl_envs import (
    ExcludeTransform,
    ObservationNorm,
    RemoveEmptySpecs,
    RenameTransform,
    RewardSum,
    SelectTransform,
    StepCounter,
)

KINDS = [CountingEnv, ArrayCountingEnv]


class OurKit(TransformKit):
    distribution = "rl-envs"
    offline = True


class TestRenameKit(OurKit):
    def make_transform(self):
        return RenameTransform(["observation", "reward"], ["state", ("given", "gain")])


class TestRenameWithACopyKit(OurKit):
    def make_transform(self):
        return RenameTransform(["observation"], [("group", "state")], create_copy=True)


class TestExcludeKit(OurKit):
    offline = False

    def make_transform(self):
        copy = RenameTransform(["observation"], ["other"], create_copy=True)
        return Compose(copy, ExcludeTransform("observation"))

    needs = ()


class TestSelectKit(OurKit):
    offline = False

    def make_transform(self):
        copy = RenameTransform(["observation"], [("kept", "other")], create_copy=True)
        return Compose(StepCounter(), RewardSum(), copy, SelectTransform("kept"))

    needs = ()


class TestRemoveEmptyKit(OurKit):
    offline = False

    def make_transform(self):
        return RemoveEmptySpecs()


# -------------------------------------------------------------------- RenameTransform
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [[], [2]])
def test_entries_have_new_names_at_the_root_and_under_next(kind, batch):
    env = TransformedEnv(
        kind(length=3, batch_size=batch),
        RenameTransform(["observation", "reward"], ["state", "gain"], ["action"], ["act"]),
    )
    assert env.observation_keys == ["state"] and env.reward_keys == ["gain"] and env.action_keys == ["act"]
    assert supports_rows(env) == (kind is ArrayCountingEnv)
    data = env.rollout(5, break_when_any_done=False)
    row = data.reshape(-1, 5)[0] if batch else data
    assert row["state"].flatten().tolist() == [0, 1, 2, 0, 1]
    assert row["next", "state"].flatten().tolist() == [1, 2, 3, 1, 2]
    assert row["next", "gain"].flatten().tolist() == [1, 2, 3, 1, 2]
    assert "act" in data and not {"observation", "action"} & set(data.keys())
    assert "reward" not in data["next"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_can_be_exchanged(kind):
    env = TransformedEnv(
        kind(length=9),
        Compose(
            RenameTransform(["observation"], ["double"], create_copy=True),
            ObservationNorm(0.0, 2.0, in_keys=["double"]),
            RenameTransform(["observation", "double"], ["double", "observation"]),
        ),
    )
    data = env.rollout(3)
    assert data["observation"].flatten().tolist() == [0, 2, 4] and data["double"].flatten().tolist() == [0, 1, 2]


def test_a_group_moves_with_all_that_it_holds():
    env = TransformedEnv(
        GroupCountingEnv([1, 3]), RenameTransform(["agents"], [("team", "red")], ["agents"], [("team", "red")])
    )
    check_env_specs(env)
    data = env.rollout(9)
    assert data["team", "red", "observation"].shape == (3, 2, 1) and "agents" not in data
    assert data["next", "team", "red", "done"].squeeze(-1).tolist() == [[True, False], [True, False], [True, True]]
    assert ("team", "red", "action") in env.action_keys


def test_stored_actions_go_back_to_the_environments_name():
    rename = RenameTransform([], [], ["action"], ["act"])
    stored = rename.inv(TensorDict(act=torch.ones(1)))
    assert set(stored.keys()) == {"action"}
    kept = RenameTransform([], [], ["action"], ["act"], create_copy=True)
    assert set(kept.inv(TensorDict(act=torch.ones(1))).keys()) == {"act", "action"}


def test_text_can_be_renamed():
    assert RenameTransform(["a"], ["b"])(TensorDict(a="text"))["b"] == "text"


def test_faulty_names_are_refused():
    with pytest.raises(ValueError, match="2 in_keys and 1 out_keys"):
        RenameTransform(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="twice"):
        RenameTransform(["a", "b"], ["c", "c"])
    with pytest.raises(EnvError, match="done, terminated or truncated"):
        _ = TransformedEnv(CountingEnv(), RenameTransform(["terminated"], ["stuff"])).full_done_spec
    with pytest.raises(EnvError, match="reads back"):
        _ = TransformedEnv(CountingEnv(), Compose(StepCounter(), RenameTransform(["step_count"], ["n"]))).state_spec
    with pytest.raises(KeyMissingError, match="RenameTransform needs 'a'"):
        RenameTransform(["a"], ["b"])(TensorDict(c=1))


# -------------------------------------------------------------------- leaving out
@pytest.mark.parametrize("kind", KINDS)
def test_excluded_entries_are_gone_and_those_computed_from_them_stay(kind):
    env = TransformedEnv(
        kind(length=3, batch_size=[2]),
        Compose(RenameTransform(["observation"], ["seen"], create_copy=True), ExcludeTransform("observation")),
    )
    data = env.rollout(5, break_when_any_done=False)
    assert env.observation_keys == ["seen"] and "observation" not in data and "observation" not in data["next"]
    assert data["seen"][0].flatten().tolist() == [0, 1, 2, 0, 1]


def test_stored_data_lose_the_entry_in_both_places_or_in_the_one_named():
    data = CountingEnv().rollout(3)
    both = ExcludeTransform("observation")(data.clone())
    assert "observation" not in both and "observation" not in both["next"]
    assert both["next"].keys() == {"reward", "done", "terminated"}
    one = ExcludeTransform(("next", "observation"))(data.clone())
    assert "observation" in one and "observation" not in one["next"]


def test_excluding_on_the_way_in_leaves_the_rest_alone():
    data = CountingEnv().rollout(3)
    exclude = ExcludeTransform("observation", inverse=True)
    assert "observation" not in exclude.inv(data) and "observation" in data and "observation" in exclude(data)
    assert "observation" in TransformedEnv(CountingEnv(), ExcludeTransform("observation", inverse=True)).rollout(2)


def test_what_an_environment_cannot_do_without_stays():
    with pytest.raises(EnvError, match="end flags"):
        TransformedEnv(CountingEnv(), ExcludeTransform("done")).rollout(2)
    with pytest.raises(EnvError, match="reads back"):
        TransformedEnv(CountingEnv(), Compose(StepCounter(), ExcludeTransform("step_count"))).rollout(2)
    with pytest.raises(EnvError, match="keep_dones"):
        TransformedEnv(CountingEnv(), SelectTransform("observation", keep_dones=False)).rollout(2)
    with pytest.raises(ValueError, match="leave out"):
        ExcludeTransform()


def test_a_reward_can_be_left_out():
    for transform in (ExcludeTransform("reward"), SelectTransform("observation", keep_rewards=False)):
        env = TransformedEnv(CountingEnv(), transform)
        assert "reward" not in env.rollout(2)["next"] and env.reward_keys == []


@pytest.mark.parametrize("kind", KINDS)
def test_only_selected_entries_stay_with_ends_rewards_and_what_steps_read(kind):
    env = TransformedEnv(kind(length=9), Compose(StepCounter(), SelectTransform("nothing")))
    data = env.rollout(3)
    assert env.observation_keys == ["step_count"]
    assert set(data["next"].keys()) == {"step_count", "reward", "done", "terminated"}
    assert data["next", "step_count"].flatten().tolist() == [1, 2, 3]


def test_a_group_is_selected_whole():
    env = TransformedEnv(GroupCountingEnv(), SelectTransform("agents"))
    check_env_specs(env)
    assert set(env.rollout(1)["next"].keys(True, True)) >= {
        ("agents", "observation"),
        ("agents", "reward"),
        "team_reward",
    }


def test_stored_data_keep_what_is_selected():
    data = CountingEnv().rollout(3)
    assert set(SelectTransform("observation", "action")(data)["next"].keys()) == {
        "observation",
        "reward",
        "done",
        "terminated",
    }
    flat = SelectTransform("observation", ("next", "reward"))(data)
    assert set(flat.keys(True, True)) == {"observation", ("next", "reward")}


# -------------------------------------------------------------------- RemoveEmptySpecs
class Hollow(CountingEnv):
    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)), empty=Composite(inner=Composite()))

    def _reset(self, tensordict=None, **kwargs):
        return super()._reset(tensordict).set("empty", TensorDict(inner=TensorDict()))

    def _step(self, tensordict):
        return super()._step(tensordict).set("empty", TensorDict(inner=TensorDict()))


def test_groups_that_hold_nothing_are_left_out():
    env = TransformedEnv(Hollow(), RemoveEmptySpecs())
    assert list(env.observation_spec.keys(True)) == ["observation"]
    assert "empty" not in env.reset() and "empty" not in env.rollout(2)["next"]
    check_env_specs(env)
