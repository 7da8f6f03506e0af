"""From specs back to gymnasium spaces: the inverse of ``gym_to_spec``."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Stacked,
    TensorSpec,
    Unbounded,
)
from rl_core.errors import SpecError
from rl_envs import gym_to_spec, spec_to_space

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw):
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from([np.float32, np.float64, np.uint8, np.int16, np.int64]))
    if draw(st.booleans()) and np.issubdtype(dtype, np.floating):
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    low = np.array(draw(st.lists(st.integers(0, 9), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))))
    high = low + draw(st.integers(0, 9))
    return spaces.Box(low.reshape(shape).astype(dtype), high.reshape(shape).astype(dtype), dtype=dtype)


@st.composite
def multi_discretes(draw):
    shape = draw(SHAPES.filter(bool))
    size = int(np.prod(shape))
    nvec, start = (
        np.array(draw(st.lists(st.integers(*bounds), min_size=size, max_size=size))).reshape(shape)
        for bounds in ((1, 5), (-3, 3))
    )
    return spaces.MultiDiscrete(nvec, start=start)


LEAVES = st.one_of(
    boxes(),
    multi_discretes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    SHAPES.filter(bool).map(lambda shape: spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(space=SPACES, categorical=st.booleans())
def test_a_space_comes_back_from_its_spec(space, categorical):
    spec = gym_to_spec(space, categorical_action_encoding=categorical)
    back = spec_to_space(spec)
    assert back == space
    assert gym_to_spec(back, categorical_action_encoding=categorical) == spec


def test_a_text_comes_back_as_a_text():
    space = spec_to_space(gym_to_spec(spaces.Text(5, min_length=2)))
    assert isinstance(space, spaces.Text) and space.contains("hello, you") and space.contains("")
    assert spec_to_space(NonTensor(example_data="ä")).contains("ä")


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (Categorical(3, shape=(2,), start=1), spaces.MultiDiscrete([3, 3], start=[1, 1])),
        (OneHot(3, shape=(2, 3)), spaces.MultiDiscrete([3, 3])),
        (MultiOneHot([2, 3], shape=(2, 5)), spaces.MultiDiscrete([[2, 3], [2, 3]])),
        (MultiCategorical([2, 3], shape=(2, 2)), spaces.MultiDiscrete([[2, 3], [2, 3]])),
        (Binary(shape=()), spaces.Box(0, 1, (), np.int8)),
        (Binary(3, dtype=torch.float32), spaces.Box(0, 1, (3,), np.float32)),
        (Unbounded((2,), dtype=torch.bool), spaces.Box(0, 1, (2,), np.bool_)),
        (
            Composite({"1": Binary(2), "0": Binary(2)}),
            spaces.Dict({"1": spaces.MultiBinary(2), "0": spaces.MultiBinary(2)}),
        ),
    ],
    ids=str,
)
def test_what_no_space_has_in_one_piece_has_an_equal_one(spec, space):
    assert spec_to_space(spec) == space


def test_a_space_does_not_share_the_memory_of_its_spec():
    spec = Bounded(low=torch.zeros(2), high=torch.tensor([1.0, 2.0]))
    space = spec_to_space(spec)
    space.high[:] = 7
    assert spec.high.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (Unbounded((2,), dtype=torch.bfloat16), "numpy has no torch.bfloat16"),
        (NonTensor(example_data=3), "objects like 3"),
        (Categorical(-1), "number of categories"),
        (Stacked(Unbounded((1,)), Unbounded((2,))), r"known for Stacked.*spec_to_space\.register"),
    ],
)
def test_a_spec_without_a_space_is_refused_with_the_reason(spec, says):
    with pytest.raises(SpecError, match=says):
        spec_to_space(spec)


def test_a_type_of_spec_can_be_added():
    class Angle(Unbounded):
        pass

    @spec_to_space.register
    def angle(spec: Angle) -> gymnasium.Space:
        return spaces.Box(-np.pi, np.pi, tuple(spec.shape))

    assert isinstance(Angle((1,)), TensorSpec)
    assert spec_to_space(Composite(a=Angle((1,))))["a"].high.item() == pytest.approx(np.pi)
