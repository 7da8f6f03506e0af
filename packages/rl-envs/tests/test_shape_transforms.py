"""PermuteTransform, FlattenObservation, UnsqueezeTransform, SqueezeTransform, Stack and ExpandAs."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Bounded, Composite, OneHot, RowProgram, TransformedEnv, Unbounded
from rl_core.errors import EnvError, KeyMissingError, SpecError
from rl_core.testing import ArrayCountingEnv, GroupCountingEnv, TransformKit
from rl_envs import ExpandAs, FlattenObservation, PermuteTransform, SqueezeTransform, Stack, UnsqueezeTransform


class Shaped(ArrayCountingEnv):
    """Counts; shows n as ``table`` [2, 2] = n + (0 1; 2 3), ``left`` = n, ``right`` = -n, [3] each."""

    def __init__(self, length=5, batch_size=()):
        super().__init__(length, batch_size)
        spec = self.observation_spec.clone()
        spec.set("table", Unbounded(shape=(*self.batch_size, 2, 2)))
        for name in ("left", "right"):
            spec.set(name, Unbounded(shape=(*self.batch_size, 3)))
        self.observation_spec = spec
        self.action_spec = Bounded(-1.0, 1.0, shape=(*self.batch_size, 2))

    def row_program(self, columns):
        counting = super().row_program(columns)
        table, left, right = columns["table"], columns["left"], columns["right"]

        def show(t, rows=...):
            table[t][rows] = (self.count[..., None] + torch.arange(4.0).reshape(2, 2).numpy())[rows]
            left[t][rows], right[t][rows] = self.count[rows], -self.count[rows]

        def step(t):
            counting.step(t)
            show(t + 1)

        def reset(t, mask):
            counting.reset(t, mask)
            show(t, ... if mask is None else mask)

        return RowProgram(step, reset)


class ShapedKit(TransformKit):
    offline = True
    steps = 10

    def make_env(self):
        return Shaped(length=[3, 5, 7], batch_size=[3])

    def make_single_env(self):
        return Shaped(length=4)


class TestPermute(ShapedKit):
    def make_transform(self):
        return PermuteTransform([-1, -2], in_keys=["table"])  # the shape stays: rows are permuted in place


class TestFlatten(ShapedKit):
    def make_transform(self):
        return FlattenObservation(-2, -1, in_keys=["table"])


class TestUnsqueeze(ShapedKit):
    def make_transform(self):
        return UnsqueezeTransform(-1, in_keys=["left", "reward"])


class TestUnsqueezeFromTheFront(ShapedKit):
    offline = False

    def make_transform(self):
        return UnsqueezeTransform(0, allow_positive_dim=True, in_keys=["left"])


class TestSqueeze(ShapedKit):
    def make_transform(self):
        return SqueezeTransform(-1, in_keys=["observation"], out_keys=["number"])


class TestStack(ShapedKit):
    def make_transform(self):
        return Stack(["left", "right"], "both", dim=-2)


class TestStackBesideItsParts(ShapedKit):
    def make_transform(self):
        return Stack(["left", "right"], "both", del_keys=False)


class TestExpandAs(ShapedKit):
    needs = ("observation", "left")

    def make_transform(self):
        return ExpandAs("observation", "left", out_key="wide")


# -------------------------------------------------------------------- permute
def test_the_last_dimensions_are_permuted_and_back():
    value = torch.arange(24).reshape(1, 2, 3, 4)
    permute = PermuteTransform([-1, -3, -2], in_keys=["x"])
    moved = permute._apply_transform(value)
    assert moved.shape == (1, 4, 2, 3) and moved[0, 3, 1, 2] == value[0, 1, 2, 3]
    assert torch.equal(permute._inv_apply_transform(moved), value)


@pytest.mark.parametrize("dims", [[0, 1], [-1, -3], [-1, -1]])
def test_dimensions_that_are_no_permutation_are_refused(dims):
    with pytest.raises(ValueError, match="permutation of the negative"):
        PermuteTransform(dims, in_keys=["x"])


def test_bounds_are_permuted_too():
    low = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    spec = Composite(x=Bounded(low, low + 1))
    permuted = PermuteTransform([-1, -2], in_keys=["x"]).transform_observation_spec(spec)["x"]
    assert permuted.low.tolist() == [[0, 2], [1, 3]]


# -------------------------------------------------------------------- flatten, squeeze, unsqueeze
def test_positive_dimensions_count_after_the_batch():
    data = TensorDict(x=torch.zeros(5, 2, 3, 4), batch_size=[5])
    assert FlattenObservation(0, 1, in_keys=["x"], allow_positive_dim=True)(data.clone())["x"].shape == (5, 6, 4)
    assert UnsqueezeTransform(0, allow_positive_dim=True, in_keys=["x"])(data.clone())["x"].shape == (5, 1, 2, 3, 4)
    assert UnsqueezeTransform(3, allow_positive_dim=True, in_keys=["x"])(data.clone())["x"].shape == (5, 2, 3, 4, 1)
    for made in (lambda: FlattenObservation(0, 1), lambda: UnsqueezeTransform(1)):
        with pytest.raises(ValueError, match="allow_positive_dim=True"):
            made()
    with pytest.raises(ValueError, match="needs the dimension"):
        UnsqueezeTransform(in_keys=["x"])


def test_actions_go_the_other_way():
    env = TransformedEnv(Shaped(batch_size=[3]), UnsqueezeTransform(-1, in_keys_inv=["action"]))
    assert env.action_spec.shape == (3, 2, 1)
    assert env.rand_step()["action"].shape == (3, 2, 1)
    squeezed = TransformedEnv(env, SqueezeTransform(-1, in_keys_inv=["action"], out_keys_inv=["flat"]))
    assert squeezed.action_keys == ["flat"] and squeezed.full_action_spec["flat"].shape == (3, 2)
    assert squeezed.rollout(4)["flat"].shape == (3, 3 + 1, 2)


def test_only_dimensions_of_size_one_are_removed():
    with pytest.raises(ValueError, match=r"size 1; the entry has shape \(4, 3\)"):
        SqueezeTransform(-1, in_keys=["x"])(TensorDict(x=torch.zeros(4, 3)))


# -------------------------------------------------------------------- stack
def test_entries_are_stacked_and_a_stacked_action_is_taken_apart():
    data = TensorDict(a=torch.zeros(2, 3), b=torch.ones(2, 3), batch_size=[2])
    assert Stack(["a", "b"], "c")(data.clone())["c"].shape == (2, 3, 2)
    assert Stack(["a", "b"], "c", dim=0, allow_positive_dim=True)(data.clone())["c"].shape == (2, 2, 3)
    assert set(Stack(["a", "b"], "c")(data.clone()).keys()) == {"c"}
    back = Stack(["a", "b"], "c", in_key_inv="act", out_keys_inv=["x", "y"])
    parts = back.inv(TensorDict(act=torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]), batch_size=[2]))
    assert parts["x"].tolist() == [[1], [3]] and parts["y"].tolist() == [[2], [4]]


class TwoActions(ArrayCountingEnv):
    """Takes a "push" and a "pull", and shows their difference."""

    def __init__(self, batch_size=()):
        super().__init__(9, batch_size)
        box = Bounded(-1.0, 1.0, shape=(*self.batch_size, 1))
        self.full_action_spec = Composite(push=box.clone(), pull=box.clone(), shape=self.batch_size)

    def row_program(self, columns):
        counting = super().row_program(columns)

        def step(t):
            counting.step(t)
            columns["observation"][t + 1] = columns["push"][t] - columns["pull"][t]

        return RowProgram(step, counting.reset)


def test_a_policy_writes_both_actions_as_one():
    stack = Stack(["observation"], "seen", in_key_inv="action", out_keys_inv=["push", "pull"], dim=-1)
    env = TransformedEnv(TwoActions([3]), stack)
    assert env.action_spec.shape == (3, 1, 2)
    data = env.rollout(4)
    difference = data["action"][..., 0] - data["action"][..., 1]
    assert torch.allclose(data["next", "seen"][..., 0], difference)
    with pytest.raises(EnvError, match="size 2"):
        stack.inv(TensorDict(action=torch.zeros(3, 1, 3), batch_size=[3]))


def test_parts_of_different_shapes_are_named():
    with pytest.raises(EnvError, match=r"one shape; they have .*'a': \(2,\), 'b': \(3,\)"):
        Stack(["a", "b"], "c")(TensorDict(a=torch.zeros(2), b=torch.zeros(3)))
    with pytest.raises(KeyMissingError, match="needs 'b'"):
        Stack(["a", "b"], "c")(TensorDict(a=torch.zeros(2)))
    with pytest.raises(ValueError, match="both"):
        Stack(["a"], "c", in_key_inv="x")


# -------------------------------------------------------------------- expand
def test_a_team_s_reward_is_given_to_every_agent():
    env = TransformedEnv(
        GroupCountingEnv([2, 3]), ExpandAs("team_reward", ("agents", "reward"), out_key=("agents", "team_reward"))
    )
    data = env.rollout(5)
    assert data["next", "agents", "team_reward"].shape == (3, 2, 1)
    assert data["next", "agents", "team_reward"][:, 0].tolist() == data["next", "team_reward"].tolist()


def test_an_entry_that_does_not_fit_is_refused_with_both_shapes():
    with pytest.raises(EnvError, match=r"\(2, 3\) does not expand to \(2, 4\)"):
        ExpandAs("a", "b")(TensorDict(a=torch.zeros(2, 3), b=torch.zeros(2, 4)))


def test_a_one_hot_entry_is_not_permuted_silently():
    spec = Composite(x=OneHot(4, shape=(2, 4)))
    with pytest.raises((SpecError, ValueError, RuntimeError)):
        PermuteTransform([-1, -2], in_keys=["x"]).transform_observation_spec(spec)
