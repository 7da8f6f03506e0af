"""Scaled actions, clipped, signed and summed rewards, joined observations, functions of entries."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Binary, Bounded, Compose, Composite, TransformedEnv, Unbounded, check_env_specs, supports_rows
from rl_core.errors import EnvError, KeyMissingError, SpecError
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv, TransformKit
from rl_envs import (
    ActionScaling,
    BinarizeReward,
    CatTensors,
    ClipTransform,
    LineariseRewards,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    SignTransform,
    UnaryTransform,
)

KINDS = [CountingEnv, ArrayCountingEnv]


class OurKit(TransformKit):
    distribution = "rl-envs"
    offline = True


class Wide(ArrayCountingEnv):
    """Counts, with a second observation of two numbers, a vector of two rewards, and actions in [1, 5]."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        batch = self.batch_size
        self.observation_spec = Composite(
            observation=Unbounded((*batch, 1)), pair=Bounded(0, 99, (*batch, 2)), count=Unbounded(batch), shape=batch
        )
        self.reward_spec = Unbounded((*batch, 2))
        self.action_spec = Bounded(1.0, 5.0, (*batch, 1))

    def row_program(self, columns):
        observation, flag = columns["observation"], columns["terminated"]

        def write(t):
            columns["pair"][t][..., :1] = 10 + observation[t]
            columns["pair"][t][..., 1:] = 20 + observation[t]
            columns["count"][t] = observation[t][..., 0]

        def step(t):
            self.count += 1
            observation[t + 1] = self.count
            columns["reward"][t] = self.count * [1, -1]
            flag[t + 1] = self.count >= self.length
            write(t + 1)

        def reset(t, mask):
            self.count[... if mask is None else mask] = 0
            observation[t][... if mask is None else mask] = 0
            write(t)

        from rl_core import RowProgram

        return RowProgram(step, reset)


class WideKit(OurKit):
    def make_env(self):
        return Wide(length=[3, 5, 7], batch_size=[3])

    def make_single_env(self):
        return Wide(length=4)


class TestActionScalingKit(WideKit):
    offline = False

    def make_transform(self):
        return ActionScaling()


class TestActionScalingWithNumbersKit(WideKit):
    offline = False

    def make_transform(self):
        return ActionScaling(["action"], loc=1.0, scale=0.5, standard_normal=False)


class TestClipKit(OurKit):
    def make_transform(self):
        return ClipTransform(in_keys=["observation", "reward"], low=1.0, high=2.5)


class TestClipOfActionsKit(OurKit):
    offline = False

    def make_transform(self):
        return ClipTransform(in_keys_inv=["action"], low=-0.5)


class TestRewardClippingKit(OurKit):
    def make_transform(self):
        return RewardClipping(None, 2.0)


class TestSignKit(OurKit):
    def make_transform(self):
        return SignTransform(["observation", "reward"])


class TestBinarizeKit(OurKit):
    def make_transform(self):
        return BinarizeReward()


class TestLineariseKit(WideKit):
    def make_transform(self):
        return LineariseRewards(["reward"], weights=[1.0, 0.5])


class TestLineariseBesideKit(WideKit):
    def make_transform(self):
        return LineariseRewards(["reward"], ["total"])


class TestCatTensorsKit(WideKit):
    def make_transform(self):
        return CatTensors(["pair", "observation", "count"], "vector", unsqueeze_if_oor=True)


class TestCatTensorsKeepingKit(WideKit):
    def make_transform(self):
        return CatTensors(["pair", "observation"], "vector", del_keys=False, sort=False)


class TestUnaryKit(OurKit):
    def make_transform(self):
        return UnaryTransform(["observation"], ["odd"], fn=lambda x: x % 2 == 1)


class TestTogetherKit(WideKit):
    def make_transform(self):
        return Compose(
            ActionScaling(),
            CatTensors(["pair", "observation"], "vector"),
            LineariseRewards(["reward"]),
            ClipTransform(["vector"], low=11.0),
            SignTransform(),
        )

    offline = False


# -------------------------------------------------------------------- ActionScaling
@pytest.mark.parametrize("batch", [[], [2]])
def test_the_policys_bounds_are_one_and_reach_the_environments(batch):
    env = TransformedEnv(Wide(length=9, batch_size=batch), ActionScaling())
    spec = env.action_spec
    assert torch.equal(spec.low.expand(spec.shape), -torch.ones(*batch, 1))
    assert torch.equal(spec.high.expand(spec.shape), torch.ones(*batch, 1))
    for given, wanted in ((-1.0, 1.0), (0.0, 3.0), (1.0, 5.0)):
        inward = env.transform._inv_call(TensorDict(action=torch.full((*batch, 1), given)))
        assert inward["action"].flatten().tolist() == [wanted] * max(1, sum(batch))
    assert env.transform.loc.unique().item() == 3 and env.transform.scale.unique().item() == 2


@pytest.mark.parametrize(("standard", "wanted", "low", "high"), [(True, 3.0, 0.0, 2.0), (False, 0.0, 3.0, 11.0)])
def test_numbers_that_are_given_count(standard, wanted, low, high):
    env = TransformedEnv(Wide(length=9), ActionScaling(loc=1.0, scale=2.0, standard_normal=standard))
    assert env.transform._inv_apply_transform(torch.tensor([1.0])).item() == wanted
    assert env.action_spec.low.item() == low and env.action_spec.high.item() == high


def test_the_policys_own_action_is_what_is_kept():
    env = TransformedEnv(PendulumEnv(), ActionScaling())
    data = env.rollout(20)
    assert data["action"].abs().max() <= 1
    td = env.step(env.reset().set("action", torch.tensor([0.5])))
    assert td["action"].item() == 0.5


def test_a_group_has_its_action_scaled():
    env = TransformedEnv(GroupCountingEnv(), ActionScaling([("agents", "action")], loc=1.0, scale=2.0))
    check_env_specs(env)
    assert env.full_action_spec["agents", "action"].high.unique().item() == 0.0
    with pytest.raises(KeyError, match="action"):
        TransformedEnv(GroupCountingEnv(), ActionScaling()).reset_keys and TransformedEnv(
            GroupCountingEnv(), ActionScaling()
        ).action_spec


def test_stored_actions_are_mapped_at_sampling():
    env = TransformedEnv(Wide(), ActionScaling())
    assert env.action_spec is not None
    buffered = ActionScaling(in_keys=["action"], loc=3.0, scale=2.0)
    assert buffered(TensorDict(action=torch.tensor([5.0])))["action"].item() == 1.0


def test_an_action_without_bounds_is_refused_with_the_cure():
    class Free(CountingEnv):
        def __init__(self):
            super().__init__()
            self.action_spec = Unbounded((1,))

    with pytest.raises(EnvError, match="loc= and scale="):
        _ = TransformedEnv(Free(), ActionScaling()).action_spec
    with pytest.raises(ValueError, match="both"):
        ActionScaling(loc=1.0)
    with pytest.raises(ValueError, match="scale of 0"):
        ActionScaling(loc=1.0, scale=0.0)
    with pytest.raises(EnvError, match="no loc and scale"):
        ActionScaling(["action"]).inv(TensorDict(action=torch.ones(1)))


# -------------------------------------------------------------------- ranges
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [[], [2]])
def test_observations_and_rewards_are_clipped(kind, batch):
    clip = ClipTransform(["observation", "reward"], ["seen", "reward"], low=1.0, high=3.0)
    data = TransformedEnv(kind(length=9, batch_size=batch), clip).rollout(5).reshape(-1, 5)[0]
    assert data["seen"].flatten().tolist() == [1, 1, 2, 3, 3]
    assert data["observation"].flatten().tolist() == [0, 1, 2, 3, 4]
    assert data["next", "reward"].flatten().tolist() == [1, 2, 3, 3, 3]


def test_a_bound_may_be_a_tensor_and_one_side_open():
    clip = ClipTransform(["x"], high=torch.tensor([1.0, 2.0]))
    assert clip._apply_transform(torch.tensor([-9.0, 9.0])).tolist() == [-9.0, 2.0]
    env = TransformedEnv(CountingEnv(), ClipTransform(["observation"], low=2.0))
    assert env.observation_spec["observation"].low.item() == 2 and env.observation_spec["observation"].high == torch.inf
    inner = Bounded(0.0, 1.0, (1,))
    assert ClipTransform(["x"], low=2.0)._map_spec(inner).is_in(torch.tensor([2.0]))


def test_actions_are_clipped_on_their_way_in():
    env = TransformedEnv(ArrayCountingEnv(), ClipTransform(in_keys_inv=["action"], low=-0.25, high=0.25))
    td = TensorDict(action=torch.tensor([0.9]))
    assert env.transform.inv(td)["action"].item() == 0.25
    assert abs(td["action"].item() - 0.9) < 1e-6


def test_clips_without_a_bound_are_refused():
    for make in (lambda: ClipTransform(["x"]), RewardClipping, lambda: ClipTransform(["x"], low=2.0, high=1.0)):
        with pytest.raises(ValueError, match=r"bound|above"):
            make()


def test_integers_are_clipped_as_integers():
    assert ClipTransform(["x"], low=0, high=3)._apply_transform(torch.tensor([-1, 9])).tolist() == [0, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_signs_and_ones_of_rewards(kind):
    env = TransformedEnv(kind(length=9), Compose(RewardScaling(-2.0, 1.0), SignTransform()))  # rewards -1, 0, 1
    assert env.rollout(3)["next", "reward"].flatten().tolist() == [-1, 0, 1]
    assert env.reward_spec.low.item() == -1 and env.reward_spec.high.item() == 1
    env = TransformedEnv(kind(length=9), Compose(RewardScaling(-2.0, 1.0), BinarizeReward()))
    assert env.rollout(3)["next", "reward"].flatten().tolist() == [0, 0, 1]
    assert isinstance(env.reward_spec, Binary) and env.rollout(1)["next", "reward"].dtype == torch.int8
    data = TensorDict({("next", "reward"): torch.tensor([[-3.0], [4.0]])}, batch_size=[2])
    assert SignTransform()(data.clone())["next", "reward"].flatten().tolist() == [-1, 1]
    assert BinarizeReward()(data.clone())["next", "reward"].flatten().tolist() == [0, 1]


# -------------------------------------------------------------------- LineariseRewards
def test_rewards_are_weighted_and_summed():
    env = TransformedEnv(Wide(length=9), LineariseRewards(["reward"], weights=[2.0, 1.0]))
    assert env.rollout(3)["next", "reward"].flatten().tolist() == [1, 2, 3]  # 2 r - r
    assert env.reward_spec.shape == (1,)
    plain = LineariseRewards(["reward"])._apply_transform(torch.tensor([[1.0, 3.0]]))
    assert plain.tolist() == [[4.0]]


def test_bounds_of_a_weighted_sum_swap_under_negative_weights():
    spec = LineariseRewards(["r"], weights=[1.0, -2.0])._map_spec(Bounded(0.0, 1.0, (2,)))
    assert spec.low.item() == -2 and spec.high.item() == 1


def test_a_wrong_number_of_weights_is_named():
    with pytest.raises(SpecError, match=r"3 weights.*2 objectives"):
        _ = TransformedEnv(Wide(), LineariseRewards(["reward"], weights=[1.0, 1.0, 1.0])).reward_spec


def test_a_groups_rewards_are_summed():
    line = LineariseRewards([("agents", "reward")], [("agents", "sum")])
    env = TransformedEnv(GroupCountingEnv(), line)
    check_env_specs(env)
    data = env.rollout(2)
    assert torch.equal(data["next", "agents", "sum"], data["next", "agents", "reward"])


# -------------------------------------------------------------------- CatTensors
@pytest.mark.parametrize("sort", [True, False])
def test_entries_are_joined_in_the_order_of_their_names_or_as_given(sort):
    cat = CatTensors(["pair", "observation"], "vector", sort=sort)
    env = TransformedEnv(Wide(length=9), cat)
    data = env.rollout(2)
    assert data["vector"].tolist() == ([[0, 10, 20], [1, 11, 21]] if sort else [[10, 20, 0], [11, 21, 1]])
    assert "pair" not in data and "pair" not in env.observation_spec and "count" in data
    stored = CatTensors(["pair", "observation"], "vector", sort=sort)(Wide(length=9).rollout(2))
    assert torch.equal(stored["vector"], data["vector"])
    assert torch.equal(stored["next", "vector"], data["next", "vector"])


def test_all_observations_are_found_by_themselves():
    env = TransformedEnv(Wide(length=9, batch_size=[2]), CatTensors(unsqueeze_if_oor=True))
    assert env.reset()["observation_vector"].tolist() == [[0, 0, 10, 20]] * 2  # count, observation, pair
    assert env.observation_keys == ["observation_vector"] and supports_rows(env)
    check_env_specs(env)


def test_an_entry_without_the_dimension_gets_one_only_if_asked():
    with pytest.raises(SpecError, match="unsqueeze_if_oor"):
        _ = TransformedEnv(Wide(), CatTensors(["count", "observation"])).observation_spec


def test_parts_of_a_group_are_joined_and_the_empty_group_goes():
    env = TransformedEnv(
        GroupCountingEnv(), UnaryTransform([("agents", "observation")], ["flat"], fn=lambda x: x.flatten(-2))
    )
    env.append_transform(CatTensors([("agents", "observation")], ("agents", "seen"), dim=-1))
    check_env_specs(env)
    assert env.rollout(2)["agents", "seen"].shape == (2, 2, 1)


def test_joined_bounds_are_those_of_the_parts():
    class Two(CountingEnv):
        def __init__(self):
            super().__init__()
            self.observation_spec = Composite(a=Bounded(0.0, 1.0, (1,)), b=Bounded(-1.0, 2.0, (2,)))

        def _reset(self, tensordict=None, **kwargs):
            return TensorDict(a=torch.zeros(1), b=torch.ones(2))

    spec = TransformedEnv(Two(), CatTensors(["a", "b"], "ab")).observation_spec["ab"]
    assert spec.low.tolist() == [0, -1, -1] and spec.high.tolist() == [1, 2, 2]


def test_faulty_joins_are_refused():
    with pytest.raises(ValueError, match="from the end"):
        CatTensors(["a"], dim=0)
    with pytest.raises(ValueError, match="no in_keys"):
        CatTensors([])
    with pytest.raises(KeyMissingError, match="CatTensors needs the observation 'nope'"):
        _ = TransformedEnv(Wide(), CatTensors(["pair", "nope"])).observation_spec
    with pytest.raises(KeyMissingError, match="CatTensors needs 'b'"):
        CatTensors(["a", "b"])(TensorDict(a=torch.ones(1)))


# -------------------------------------------------------------------- UnaryTransform
def test_text_is_mapped_one_by_one_or_whole():
    one = UnaryTransform(["text"], ["size"], fn=lambda text: torch.tensor(len(text)))
    assert one(TensorDict(text="abc"))["size"].item() == 3
    batch = TensorDict(text=["a", "bb"], batch_size=[2])
    assert one(batch)["size"].tolist() == [1, 2]
    whole = UnaryTransform(["text"], ["n"], fn=lambda texts: torch.tensor(len(texts)).expand(2), use_raw_nontensor=True)
    assert whole(TensorDict(text=["a", "bb"], batch_size=[2]))["n"].tolist() == [2, 2]
    upper = UnaryTransform(["text"], ["upper"], fn=str.upper)
    assert upper(TensorDict(text=["a", "bb"], batch_size=[2]))["upper"] == ["A", "BB"]


def test_the_inverse_maps_what_the_policy_writes():
    unary = UnaryTransform([], [], ["action"], ["double"], fn=None, inv_fn=lambda x: x / 2)
    env = TransformedEnv(CountingEnv(), unary)
    assert env.action_keys == ["double"]
    assert unary.inv(TensorDict(double=torch.ones(1)))["action"].item() == 0.5
    with pytest.raises(ValueError, match="no inv_fn"):
        UnaryTransform([], [], ["a"], ["b"], fn=None)
    with pytest.raises(KeyMissingError, match="UnaryTransform needs 'double'"):
        unary.inv(TensorDict(other=torch.ones(1)))


# -------------------------------------------------------------------- ObservationNorm
@pytest.mark.parametrize("batch", [[], [2]])
def test_the_default_observation_is_the_one_there_is(batch):
    """Where nothing is called "observation", every floating-point observation is mapped."""
    kinds = (CountingEnv, ArrayCountingEnv)
    for kind in kinds:
        env = TransformedEnv(
            kind(length=9, batch_size=batch),
            Compose(RenameTransform(["observation"], ["pixels"]), ObservationNorm(loc=0.5, scale=1.0)),
        )
        assert env.rollout(3)["pixels"].reshape(-1, 3)[0].tolist() == [0.5, 1.5, 2.5]
        assert env.transform[1].in_keys == ["pixels"]
        check_env_specs(env)
    kept = TransformedEnv(Wide(length=9, batch_size=batch), ObservationNorm(loc=0.5, scale=1.0))
    assert kept.reset()["pair"].reshape(-1, 2)[0].tolist() == [10, 20] and kept.transform.in_keys == ["observation"]
