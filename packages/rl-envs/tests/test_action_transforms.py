"""Choices and chunks: masks, intervals, projections, flattened actions, several actions at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_core import (
    ArrayEnv,
    Bounded,
    Categorical,
    Compose,
    Composite,
    MultiCategorical,
    OneHot,
    RowProgram,
    TransformedEnv,
    Unbounded,
    check_env_specs,
    supports_rows,
)
from rl_core.errors import EnvError, KeyMissingError, PolicyError
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv, TransformKit, overrides_check
from rl_envs import (
    ActionDiscretizer,
    ActionMask,
    ActionScaling,
    DiscreteActionProjection,
    FlattenAction,
    MultiAction,
    PendulumEnv,
    RewardSum,
    StepCounter,
)

KINDS = [CountingEnv, ArrayCountingEnv]


class OurKit(TransformKit):
    distribution = "rl-envs"


class Acting(ArrayEnv):
    """Observes the sum of its action's entries; an episode has ``length`` steps."""

    def __init__(self, spec, length=5, batch_size=()):
        super().__init__(batch_size=batch_size)
        batch = self.batch_size
        self.lengths = torch.as_tensor(length).expand(batch).numpy()[..., None]
        self.observation_spec = Composite(seen=Unbounded((*batch, 1)), shape=batch)
        self.action_spec = spec.expand((*batch, *spec.shape))

    def row_program(self, columns):
        count = torch.zeros(*self.batch_size, 1).numpy()
        batch = tuple(self.batch_size)

        def step(t):
            count[...] += 1
            columns["seen"][t + 1] = columns["action"][t].reshape(*batch, -1).sum(-1, keepdims=True)
            columns["reward"][t] = count
            columns["terminated"][t + 1] = count >= self.lengths

        def reset(t, mask):
            count[... if mask is None else mask] = 0
            columns["seen"][t][... if mask is None else mask] = 0

        return RowProgram(step, reset)

    def _set_seed(self, seed):
        pass


class ActingKit(OurKit):
    spec = Bounded(-1.0, 3.0, (2,))

    def make_env(self):
        return Acting(self.spec, [3, 5, 7], [3])

    def make_single_env(self):
        return Acting(self.spec, 4)


class TestDiscretizerKit(ActingKit):
    def make_transform(self):
        return ActionDiscretizer(torch.tensor([3, 4]))

    offline = False


class TestProjectionKit(ActingKit):
    spec = OneHot(3)
    needs = ()

    def make_transform(self):
        return DiscreteActionProjection(3, 3)


class TestFlattenActionKit(ActingKit):
    spec = Bounded(-1.0, 3.0, (2, 3))

    def make_transform(self):
        return FlattenAction()

    @overrides_check(reason="the raw environment cannot take the flat actions; the transform learns nothing")
    def test_evaluation_freezes_the_statistics(self):
        assert not self.make_transform().state_dict()


class TestActionMaskKit(ActingKit):
    needs = ("action_mask",)

    def make_env(self):
        return Masked([3], strict=False)

    def make_single_env(self):
        return Masked([], strict=False)

    def make_transform(self):
        return ActionMask()


# -------------------------------------------------------------------- ActionMask
class Masked(ArrayEnv):
    """Only the choice ``step % 4`` is legal; an illegal one raises where ``strict``."""

    def __init__(self, batch_size=(), mask="action_mask", kind=Categorical, strict=True):
        super().__init__(batch_size=batch_size)
        batch, self.mask, self.strict = self.batch_size, mask, strict
        self.observation_spec = Composite(
            {mask: Categorical(2, (*batch, 4), dtype=torch.bool), "step": Unbounded((*batch, 1))}, shape=batch
        )
        self.action_spec = kind(4).expand((*batch, *kind(4).shape))

    def row_program(self, columns):
        def write(t, rows=...):
            step = columns["step"][t]
            columns[self.mask][t][rows] = (torch.arange(4) == torch.from_numpy(step) % 4).numpy()[rows]

        def step(t):
            action = columns["action"][t]
            chosen = action.argmax(-1) if action.dtype == bool else action
            assert not self.strict or (chosen == columns["step"][t][..., 0] % 4).all()
            columns["step"][t + 1] = columns["step"][t] + 1
            columns["reward"][t] = 1
            columns["terminated"][t + 1] = columns["step"][t + 1] >= 6
            write(t + 1)

        def reset(t, mask):
            columns["step"][t][... if mask is None else mask] = 0
            write(t)

        return RowProgram(step, reset)

    def _step(self, tensordict):
        self._bound()[0]["step"][0] = tensordict["step"].numpy()
        return super()._step(tensordict)

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize("kind", [Categorical, OneHot])
@pytest.mark.parametrize("batch", [[], [2]])
def test_random_actions_are_legal_under_a_mask_of_any_name(kind, batch):
    env = TransformedEnv(Masked(batch, "legal", kind), ActionMask(mask_key="legal"))
    data = env.rollout(15, break_when_any_done=False)
    assert data["action_mask"].shape == data["legal"].shape
    assert torch.equal(data["action_mask"], data["legal"])


def test_the_action_spec_has_the_mask_of_the_last_step():
    env = TransformedEnv(Masked(), ActionMask())
    td = env.reset()
    for step in range(9):
        if step % 6 == 0:
            td = env.reset()
        assert env.action_spec.rand().item() == (step % 6) % 4
        td = env.step_mdp(env.step(env.rand_action(td)))


def test_a_partial_reset_keeps_the_masks_of_the_other_rows():
    env = TransformedEnv(Masked([2]), ActionMask())
    td = env.step_mdp(env.step(env.rand_action(env.reset())))
    td["_reset"] = torch.tensor([[True], [False]])
    fresh = env.reset(td)
    assert env.rand_action(fresh)["action"].tolist() == [0, 1]


def test_a_mask_or_a_choice_that_is_not_there_is_named():
    with pytest.raises(KeyMissingError, match=r"ActionMask needs .*'legal'"):
        TransformedEnv(Masked(), ActionMask(mask_key="legal")).rollout(1)
    with pytest.raises(EnvError, match="to be a choice"):
        _ = TransformedEnv(CountingEnv(), ActionMask()).action_spec


# -------------------------------------------------------------------- ActionDiscretizer
def places(env, n):
    return [env.transform._inv_apply_transform(torch.tensor([i])).item() for i in range(n)]


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (None, [-1.5, -0.5, 0.5, 1.5]),
        ("MEDIAN", [-1.5, -0.5, 0.5, 1.5]),
        ("LOW", [-2, -1, 0, 1]),
        ("HIGH", [-1, 0, 1, 2]),
    ],
)
def test_an_interval_has_a_middle_and_two_ends(sampling, wanted):
    strategy = None if sampling is None else ActionDiscretizer.SamplingStrategy[sampling]
    env = TransformedEnv(PendulumEnv(), ActionDiscretizer(4, sampling=strategy))
    assert places(env, 4) == wanted
    assert env.action_spec == MultiCategorical([4])


def test_drawn_values_lie_in_their_interval_and_fill_it():
    env = TransformedEnv(PendulumEnv(), ActionDiscretizer(4, sampling=ActionDiscretizer.SamplingStrategy.RANDOM))
    drawn = env.transform._inv_apply_transform(torch.full((2000, 1), 2))
    assert drawn.min() >= 0 and drawn.max() <= 1 and drawn.min() < 0.05 and drawn.max() > 0.95


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300))
def test_any_number_of_intervals_gives_that_many(n):
    for name in ("LOW", "HIGH", "MEDIAN"):
        strategy = ActionDiscretizer.SamplingStrategy[name]
        env = TransformedEnv(PendulumEnv(), ActionDiscretizer(n, sampling=strategy))
        values = env.transform._inv_apply_transform(torch.arange(n).unsqueeze(-1)).flatten()
        assert env.action_spec.nvec.tolist() == [n] and len(values.unique()) == n
        assert values.min() >= -2 and values.max() <= 2
        assert torch.allclose(values.diff(), torch.full((n - 1,), 4 / n), atol=1e-5)
    assert env.base.action_spec.is_in(values.unsqueeze(-1)[-1])


def test_forty_nine_intervals_are_forty_nine():
    env = TransformedEnv(PendulumEnv(), ActionDiscretizer(49, sampling=ActionDiscretizer.SamplingStrategy.LOW))
    assert len(set(places(env, 49))) == 49 and places(env, 49)[0] == -2
    assert env.action_spec.is_in(torch.tensor([48])) and not env.action_spec.is_in(torch.tensor([49]))
    check_env_specs(env)


def test_each_dimension_may_have_its_own_number():
    env = TransformedEnv(
        Acting(Bounded(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0]))), ActionDiscretizer([2, 4])
    )
    assert env.transform._inv_apply_transform(torch.tensor([1, 0])).tolist() == [0.75, -0.75]
    one_hot = TransformedEnv(
        Acting(Bounded(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0])), batch_size=[2]),
        ActionDiscretizer([2, 4], out_action_key="choice", categorical=False),
    )
    assert one_hot.action_key == "choice" and one_hot.action_spec.shape == (2, 6)
    td = one_hot.reset().set("choice", torch.tensor([[0, 1, 1, 0, 0, 0]] * 2).bool())
    assert one_hot.step(td)["next", "seen"].flatten().tolist() == [0, 0] and "action" not in td
    check_env_specs(one_hot)


def test_a_groups_action_is_cut_into_intervals():
    env = TransformedEnv(GroupCountingEnv(), ActionDiscretizer(3, ("agents", "action")))
    assert env.full_action_spec["agents", "action"].shape == (2, 1)
    check_env_specs(env)


def test_what_cannot_be_cut_is_refused():
    for spec in (Unbounded((1,)), Categorical(3), Bounded(low=0.0, shape=(1,))):
        with pytest.raises(EnvError, match=r"bounded|finite"):
            _ = TransformedEnv(Acting(spec), ActionDiscretizer(3)).action_spec
    with pytest.raises(EnvError, match="2 numbers of intervals"):
        _ = TransformedEnv(PendulumEnv(), ActionDiscretizer([2, 2])).action_spec
    with pytest.raises(ValueError, match="num_intervals"):
        ActionDiscretizer(0)


# -------------------------------------------------------------------- DiscreteActionProjection
@pytest.mark.parametrize("kind", [OneHot, Categorical])
def test_choices_beyond_the_environments_become_some_of_its_own(kind):
    torch.manual_seed(0)
    env = TransformedEnv(Acting(kind(3), 99), DiscreteActionProjection(3, 5))
    assert env.action_spec == kind(5)
    check_env_specs(env)
    found = set()
    for choice in [0, 1, 2, *[4] * 40]:
        inward = env.transform.inv(TensorDict(action=kind(5).encode(choice)))["action"]
        assert env.base.action_spec.is_in(inward)
        number = int(inward.long().argmax(-1)) if kind is OneHot else int(inward)
        assert number == choice or choice == 4
        found.add(number if choice == 4 else -1)
    assert found == {-1, 0, 1, 2}


def test_stored_one_hot_actions_get_the_policys_columns():
    project = DiscreteActionProjection(2, 4)
    assert project(TensorDict(action=torch.tensor([0, 1])))["action"].tolist() == [0, 1, 0, 0]
    plain = DiscreteActionProjection(2, 4, include_forward=False)
    assert plain(TensorDict(action=torch.tensor([0, 1])))["action"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="wanted 1 <="):
        DiscreteActionProjection(5, 4)
    with pytest.raises(EnvError, match="num_actions_effective=2"):
        _ = TransformedEnv(Acting(OneHot(3)), DiscreteActionProjection(2, 4)).action_spec


# -------------------------------------------------------------------- FlattenAction
@pytest.mark.parametrize("batch", [[], [2]])
def test_a_matrix_is_written_as_a_vector(batch):
    low = torch.arange(6.0).reshape(2, 3)
    env = TransformedEnv(Acting(Bounded(low, low + 1), batch_size=batch), FlattenAction())
    assert env.action_spec.shape == (*batch, 6) and supports_rows(env)
    assert env.action_spec.low.reshape(-1, 6)[0].tolist() == [0, 1, 2, 3, 4, 5]
    check_env_specs(env)
    assert env.rollout(3)["action"].shape == (*batch, 3, 6)


def test_stored_actions_are_flattened_and_unflattened():
    flatten = FlattenAction(in_keys=["action"], action_shape=(2, 3))
    assert flatten(TensorDict(action=torch.zeros(5, 2, 3), batch_size=[5]))["action"].shape == (5, 6)
    assert flatten.inv(TensorDict(action=torch.zeros(5, 6), batch_size=[5]))["action"].shape == (5, 2, 3)
    with pytest.raises(EnvError, match="action_shape"):
        FlattenAction().inv(TensorDict(action=torch.zeros(6)))
    with pytest.raises(ValueError, match="allow_positive_dim"):
        FlattenAction(0, 1)
    with pytest.raises(EnvError, match="nothing to merge"):
        _ = TransformedEnv(Acting(Unbounded((2, 3))), FlattenAction(-1, -1)).action_spec
    assert FlattenAction(0, 1, allow_positive_dim=True)._apply_transform(torch.zeros(2, 3, 4)).shape == (6, 4)


# -------------------------------------------------------------------- MultiAction
def chunk(env, k):
    return env.reset().set("action", torch.zeros(*env.batch_size, k, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_taken_one_action_after_the_other(kind):
    env = TransformedEnv(kind(length=9), MultiAction())
    td = env.step(chunk(env, 3))
    assert td["next", "observation"].item() == 3 and td["next", "reward"].flatten().tolist() == [1, 2, 3]
    assert td["action"].shape == (3, 1) and "reward" not in td
    td = env.step(env.step_mdp(td).set("action", torch.zeros(2, 1)))
    assert td["next", "observation"].item() == 5 and td["next", "reward"].flatten().tolist() == [4, 5]


class CountsSteps(CountingEnv):
    steps = 0

    def _step(self, tensordict):
        self.steps += 1
        return super()._step(tensordict)


def test_nothing_is_stepped_after_the_end():
    env = TransformedEnv(CountsSteps(length=2), MultiAction())
    td = env.step(chunk(env, 5))
    assert env.base.steps == 2 and td["next", "done"].item()
    assert td["next", "reward"].flatten().tolist() == [1, 2, 0, 0, 0] and td["next", "observation"].item() == 2


def test_rows_that_ended_keep_their_end_while_others_go_on():
    env = TransformedEnv(CountingEnv(length=[2, 9, 4], batch_size=[3]), MultiAction())
    td = env.step(chunk(env, 4))
    assert td["next", "observation"].flatten().tolist() == [2, 4, 4]
    assert td["next", "done"].flatten().tolist() == [True, False, True]
    assert td["next", "reward"].squeeze(-1).tolist() == [[1, 2, 0, 0], [1, 2, 3, 4], [1, 2, 3, 4]]
    after = env.maybe_reset(env.step_mdp(td))
    assert after["observation"].flatten().tolist() == [0, 4, 0]


@pytest.mark.parametrize("batch", [[], [2]])
def test_rewards_may_be_the_last_and_observations_all(batch):
    last = TransformedEnv(CountingEnv(length=2, batch_size=batch), MultiAction(stack_rewards=False))
    assert last.step(chunk(last, 3))["next", "reward"].flatten().unique().tolist() == [2]
    every = TransformedEnv(CountingEnv(length=2, batch_size=batch), MultiAction(stack_observations=True))
    td = every.step(chunk(every, 3))
    assert td["observation"].shape == (*batch, 1, 1)
    assert td["next", "observation"].reshape(-1, 3)[0].tolist() == [1, 2, 2]


def test_the_chunk_may_have_another_name_and_place():
    env = TransformedEnv(CountingEnv(length=9, batch_size=[2]), MultiAction(chunk_key="plan", dim=2))
    assert env.action_keys == ["plan"]
    td = env.step(env.reset().set("plan", torch.zeros(2, 1, 3)))
    assert td["next", "observation"].flatten().tolist() == [3, 3] and td["plan"].shape == (2, 1, 3)


def test_transforms_ahead_see_every_action_and_those_after_one_chunk():
    env = TransformedEnv(
        CountingEnv(length=9),
        Compose(StepCounter(), RewardSum(), MultiAction(stack_rewards=False), StepCounter(step_count_key="chunks")),
    )
    td = env.step(chunk(env, 3))
    assert td["next", "step_count"].item() == 3 and td["next", "episode_reward"].item() == 6
    assert td["next", "chunks"].item() == 1


def test_a_limit_ahead_of_the_chunk_cuts_it():
    env = TransformedEnv(CountingEnv(length=9), Compose(StepCounter(max_steps=2), MultiAction()))
    td = env.step(chunk(env, 4))
    assert td["next", "truncated"].item() and not td["next", "terminated"].item()
    assert td["next", "observation"].item() == 2


def test_actions_of_a_chunk_pass_the_inverses_on_both_sides():
    class Seen(CountingEnv):
        seen = ()

        def _step(self, tensordict):
            self.seen = (*self.seen, tensordict["action"].item())
            return super()._step(tensordict)

    env = TransformedEnv(
        Seen(length=9),
        Compose(ActionScaling(loc=0.0, scale=2.0), MultiAction(), ActionScaling(["action"], loc=1.0, scale=3.0)),
    )
    env.step(env.reset().set("action", torch.tensor([[0.0], [1.0]])))
    assert env.base.seen == (2.0, 8.0)  # 2 (3 a + 1)


@pytest.mark.parametrize("batch", [[], [2]])
def test_random_chunks_hold_one_action_and_specs_say_any(batch):
    env = TransformedEnv(CountingEnv(length=4, batch_size=batch), MultiAction())
    assert env.action_spec.shape == (*batch, -1, 1) and env.reward_spec.shape == (*batch, -1, 1)
    check_env_specs(env)
    assert env.rollout(3)["next", "reward"].shape == (*batch, 3, 1, 1)


def test_a_rollout_of_chunks():
    def policy(observation):
        return torch.zeros(2, 1)

    data = TransformedEnv(CountingEnv(length=5), MultiAction()).rollout(9, policy, break_when_any_done=False)
    assert data["next", "observation"].flatten().tolist() == [2, 4, 5, 2, 4, 5, 2, 4, 5]


def test_an_action_without_the_chunks_dimension_is_refused():
    env = TransformedEnv(CountingEnv(batch_size=[2]), MultiAction())
    with pytest.raises(PolicyError, match=r"dimension 1 of 3"):
        env.step(env.reset().set("action", torch.zeros(2, 1)))
    with pytest.raises(EnvError, match="append it"):
        MultiAction().inner_env()
