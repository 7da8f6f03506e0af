"""Spaces and specs, and values in both directions."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_core import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, NonTensor, OneHot, Unbounded
from rl_core.errors import SpecError
from rl_envs import SpaceConversion, gym_to_spec, register_gym_spec_conversion
from rl_envs.gym.conversions import conversion_of
from rl_envs.gym.rows import reach
from rl_envs.gym.spaces import leaves_of

NESTED = spaces.Dict(
    a=spaces.Box(-1, 1, (3,)),
    b=spaces.Dict(c=spaces.Discrete(4), d=spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Discrete(3)))),
)


@pytest.mark.parametrize(
    ("space", "categorical", "spec"),
    [
        (spaces.Box(-1, 2, (3,)), False, Bounded(low=-1, high=2, shape=(3,), dtype=torch.float32)),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), False, Unbounded(shape=(2,), dtype=torch.float64)),
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), False, Bounded(low=0, high=255, shape=(4, 5, 3), dtype=torch.uint8)),
        (spaces.Box(-5, 5, (2,), np.int32), False, Bounded(low=-5, high=5, shape=(2,), dtype=torch.int32)),
        (spaces.Discrete(4), False, OneHot(4, dtype=torch.int64)),
        (spaces.Discrete(4), True, Categorical(4)),
        (spaces.Discrete(4, start=2), False, OneHot(4, dtype=torch.int64, start=2)),
        (spaces.Discrete(4, start=2), True, Categorical(4, start=2)),
        (spaces.MultiDiscrete([5, 5]), False, MultiOneHot([5, 5], dtype=torch.int64)),
        (spaces.MultiDiscrete([5, 5]), True, MultiCategorical([5, 5])),
        (spaces.MultiDiscrete([[3, 2], [1, 4]]), True, MultiCategorical([[3, 2], [1, 4]])),
        (spaces.MultiBinary(4), False, Binary(4, dtype=torch.int8)),
        (spaces.MultiBinary((2, 3)), False, Binary(shape=(2, 3), dtype=torch.int8)),
    ],
)
def test_a_space_becomes_its_spec(space, categorical, spec):
    assert gym_to_spec(space, categorical_action_encoding=categorical) == spec


def test_bounds_may_be_missing_on_one_side_or_of_one_element():
    space = spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 1], np.float32))
    spec = gym_to_spec(space)
    assert spec.is_in(torch.tensor([1e9, -1e9])) and not spec.is_in(torch.tensor([-1.0, 0.0]))


def test_equal_counts_are_not_a_batch():
    for nvec in ([5, 5], [5, 4]):
        assert gym_to_spec(spaces.MultiDiscrete(nvec), categorical_action_encoding=True).shape == (2,)


def test_dicts_and_tuples_nest_and_tuples_are_numbered():
    spec = gym_to_spec(NESTED)
    assert isinstance(spec, Composite)
    assert set(spec.keys(True, True)) == {"a", ("b", "c"), ("b", "d", "0"), ("b", "d", "1")}
    assert spec["b", "d", "1"] == OneHot(3, dtype=torch.int64)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (3,)),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Box(0, 255, (2, 2, 3), np.uint8),
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.Discrete(3, start=2),
        spaces.Discrete(100, start=-7),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiDiscrete([[3, 2], [1, 4]], start=[[1, 0], [2, -3]]),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 3)),
        NESTED,
    ],
    ids=str,
)
@pytest.mark.parametrize("categorical", [False, True])
def test_values_survive_the_way_in_and_back(space, categorical):
    space.seed(0)
    for leaf in leaves_of(space, ("x",), categorical):
        for _ in range(20):
            native = reach(space.sample(), leaf.path)
            row = torch.zeros(leaf.spec.shape, dtype=leaf.spec.dtype)
            encode = leaf.encoder()
            row.numpy()[...] = native if encode is None else encode(native)
            assert leaf.spec.is_in(row)
            back = leaf.decoder(batched=False)(row.numpy() if row.ndim else row.numpy()[()])
            assert leaf.space.contains(back) and np.array_equal(back, native)
            both = leaf.decoder(batched=True)(torch.stack([row, row]).numpy())
            assert np.array_equal(both[1], native)


def test_objects_without_a_shape_are_kept_as_they_are():
    for space in (spaces.Text(5, min_length=2), spaces.Sequence(spaces.Discrete(3))):
        spec = gym_to_spec(space)
        assert isinstance(spec, NonTensor) and space.contains(spec.example_data)


def test_an_action_does_not_share_the_memory_of_its_row():
    row = np.zeros(2, np.float32)
    leaf = leaves_of(spaces.Box(-1, 1, (2,)), ("action",), False)[0]
    action = leaf.decoder(batched=False)(row)
    row[:] = 1
    assert action.tolist() == [0, 0]


def test_a_row_that_is_not_one_hot_is_refused():
    decode = leaves_of(spaces.Discrete(3), ("action",), False)[0].decoder(batched=False)
    with pytest.raises(SpecError, match=r"one 1 among 3 entries, found \[0, 0, 0\].*categorical_action_encoding"):
        decode(np.zeros(3, np.int64))


class Angle(gymnasium.Space):
    """A space nobody knows."""

    def __init__(self):
        super().__init__((1,), np.float32)


def test_an_unknown_type_of_space_names_the_way_to_register_it():
    with pytest.raises(SpecError, match=r"Angle.*register_gym_spec_conversion"):
        gym_to_spec(Angle())


def test_a_registered_function_and_a_registered_class_are_used():
    class Turn(Angle):
        pass

    @register_gym_spec_conversion(Turn)
    def turn(space, categorical):
        return Bounded(low=0, high=1, shape=(1,), dtype=torch.float32)

    assert gym_to_spec(Turn()).high.item() == 1

    class Degrees(SpaceConversion):
        def spec(self, space, categorical):
            return Unbounded(shape=(1,), dtype=torch.float32)

        def encoder(self, space, spec):
            return np.deg2rad

    register_gym_spec_conversion(Turn, Degrees)
    assert isinstance(gym_to_spec(Turn()), Unbounded)
    assert conversion_of(Turn()).encoder(None, None)(180.0) == pytest.approx(np.pi)
