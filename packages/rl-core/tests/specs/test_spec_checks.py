"""What ``is_in`` accepts (batch dimensions included), what ``encode`` makes, and what the errors say."""

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack

from rl_core import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)
from rl_core.errors import SpecError

# ---- shapes and dtypes


def test_another_dtype_is_not_a_member():
    assert not Bounded(0, 1).is_in(torch.tensor(0.5, dtype=torch.float64))
    assert not Categorical(3).is_in(torch.tensor(1, dtype=torch.int32))
    assert not Categorical(3).is_in(1)


def test_further_leading_dimensions_are_accepted():
    assert Categorical(5).is_in(torch.tensor([3, 2]))
    assert Unbounded((4, 3)).is_in(torch.zeros(20, 4, 3))
    assert not Unbounded((4, 3)).is_in(torch.zeros(3)) and not Unbounded(3).is_in(torch.zeros(4))


def test_a_rollouts_time_may_follow_the_batch():
    spec = Composite(action=Bounded(0, 1, shape=(4, 3)), shape=(4,))["action"]
    assert spec.batch_ndim == 1
    for shape in [(4, 3), (4, 20, 3), (20, 4, 3), (4, 20, 5, 3), (1, 3), (3,)]:
        assert spec.is_in(torch.zeros(shape)), shape
    for shape in [(20, 3), (4, 20), (20, 5, 3), (4, 3, 1)]:
        assert not spec.is_in(torch.zeros(shape)), shape


def test_time_may_stand_between_two_batch_dimensions():
    env = Composite(agents=Composite(observation=Unbounded((4, 2, 3)), shape=(4, 2)), shape=(4,))
    assert env["agents", "observation"].is_in(torch.zeros(4, 20, 2, 3))
    assert env.is_in(torch.stack([env.rand() for _ in range(20)], 1))


def test_bounds_that_differ_by_batch_row_align_with_the_rollout():
    spec = Composite(a=Bounded(torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [6.0]])), shape=(2,))["a"]
    rollout = torch.stack([spec.rand() for _ in range(7)], 1)
    assert rollout.shape == (2, 7, 1) and spec.is_in(rollout) and not spec.is_in(rollout.flip(0))
    assert spec.project(rollout.flip(0))[:, :, 0].tolist() == [[1.0] * 7, [5.0] * 7]
    assert spec.is_in(spec.rand((3,)))


def test_indexing_keeps_track_of_the_batch():
    spec = Composite(a=Unbounded((4, 5, 3)), shape=(4, 5))
    assert spec["a"].batch_ndim == 2
    assert spec[0]["a"].batch_ndim == 1 and spec[0]["a"].is_in(torch.zeros(5, 9, 3))
    assert spec[0, 0]["a"].batch_ndim == 0 and spec[:, None]["a"].batch_ndim == 3
    assert spec["a"][0].batch_ndim == 1 and spec["a"][:, 1:2].batch_ndim == 2 and spec["a"][0, 1].batch_ndim == 0
    assert spec["a"].flatten(0, 1).batch_ndim == 1 and spec["a"].reshape(20, 3).batch_ndim == 1
    assert spec["a"].unflatten(0, (2, 2)).batch_ndim == 3 and spec["a"].unsqueeze(0).batch_ndim == 3
    assert spec["a"].unsqueeze(-1).batch_ndim == 2 and spec["a"].permute(1, 0, 2).batch_ndim == 2
    assert spec["a"][torch.tensor([0, 1]), torch.tensor([0, 1])].batch_ndim == 1


def test_not_a_number_is_outside_of_every_box():
    for size in (3, 40):
        values = torch.zeros(size)
        values[1] = float("nan")
        assert not Bounded(-1, 1, shape=(size,)).is_in(values)
    assert not Bounded(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).is_in(torch.tensor([float("nan"), 1.0]))


def test_large_values_are_checked_too():
    spec = Bounded(0, 1, shape=(50,))
    assert spec.is_in(torch.ones(50)) and not spec.is_in(torch.ones(50) * 1.1)
    assert Categorical(3, (50,)).is_in(torch.full((50,), 2)) and not Categorical(3, (50,)).is_in(torch.full((50,), 3))
    assert not Categorical(3, (50,), dtype=torch.float32).is_in(torch.full((50,), 0.5))
    assert OneHot(50).is_in(OneHot(50).rand()) and not OneHot(50).is_in(torch.ones(50).bool())
    assert not OneHot(3, dtype=torch.float32).is_in(torch.tensor([0.5, 0.5, 0.0]))
    assert not OneHot(2, dtype=torch.int64).is_in(torch.tensor([2, -1]))


def test_an_empty_batch_is_legal():
    for spec in (Bounded(0, 1, shape=(2,)), Categorical(3), OneHot(3), MultiCategorical([2, 3]), Binary(2)):
        assert spec.is_in(spec.rand((0,)))


def test_missing_keys_are_not_members_and_further_keys_are_ignored():
    spec = Composite(a=Unbounded(3), nested=Composite(b=Unbounded(1)))
    td = spec.rand().set("more", torch.zeros(2))
    assert spec.is_in(td)
    del td["nested", "b"]
    assert not spec.is_in(td)
    assert spec.is_in({"a": torch.zeros(3), "nested": {"b": torch.zeros(1)}})


def test_python_objects_are_members_of_non_tensor_specs():
    spec = Composite(text=NonTensor((2,), example_data="x"), shape=(2,))
    td = spec.rand()
    assert td["text"] == "x" and spec.is_in(td)
    assert spec["text"].is_in(NonTensorStack("a", "b")) and not spec["text"].is_in(torch.zeros(2))
    assert NonTensor().is_in("any") and NonTensor().is_in(NonTensorData(3))
    assert NonTensor((2,), batched=True, example_data="x").rand().tolist() == ["x", "x"]


# ---- encode


def test_arrays_of_another_dtype_are_cast_and_copied():
    source = np.array([0.5, 1.0], dtype=np.float64)
    encoded = Bounded(0, 1, shape=(2,)).encode(source)
    assert encoded.dtype == torch.float32
    same = np.zeros(2, dtype=np.float32)
    kept = Unbounded(2).encode(same)
    same += 1
    assert kept.tolist() == [0.0, 0.0]


def test_dimensions_of_size_one_are_added_and_removed():
    assert Unbounded((1,)).encode(3.0).tolist() == [3.0]
    assert Unbounded(()).encode(np.array([3.0])).item() == 3.0
    assert Unbounded((2, 1)).encode([1, 2]).shape == (2, 1)
    with pytest.raises(SpecError, match=r"expected the shape \[3\].*found \[2\]"):
        Unbounded(3).encode([1.0, 2.0])


def test_encode_accepts_further_leading_dimensions():
    assert Unbounded(3).encode(np.zeros((5, 3))).shape == (5, 3)
    assert OneHot(3).encode(np.array([0, 2])).shape == (2, 3)
    assert MultiOneHot([3, 2]).encode(np.array([[0, 1], [2, 0]])).shape == (2, 5)


def test_encode_leaves_encoded_values_alone():
    value = OneHot(3).rand()
    assert OneHot(3).encode(value) is value


def test_nested_dictionaries_are_encoded_and_read_back():
    spec = Composite(a=OneHot(3), nested=Composite(b=Unbounded(2), text=NonTensor()))
    td = spec.encode({"a": 2, "nested": {"b": np.ones(2), "text": "hello"}})
    assert spec.is_in(td)
    back = spec.to_numpy(td)
    assert back["a"] == 2 and back["nested"]["b"].tolist() == [1, 1] and back["nested"]["text"] == "hello"
    with pytest.raises(SpecError, match="no entry 'zz' to encode; it has \\['a', 'nested'\\]"):
        spec.encode({"zz": 1})


def test_text_is_not_a_number():
    with pytest.raises(SpecError, match="Expected numbers"):
        Unbounded(1).encode("text")


# ---- texts


def fails(spec, value):
    with pytest.raises(SpecError) as caught:
        spec.assert_is_in(value)
    return str(caught.value)


def test_errors_name_expected_and_found():
    assert "expected dtype torch.float32, found torch.float64" in fails(Unbounded(2), torch.zeros(2).double())
    assert "expected the shape [2]" in fails(Unbounded(2), torch.zeros(3))
    assert "expected values in [0.0, 1.0], found 2.0 at index [1]" in fails(
        Bounded(0, 1, shape=(3,)), torch.tensor([0.0, 2.0, 3.0])
    )
    assert "whole numbers from 2 to 4, found 5 at index [1]" in fails(Categorical(3, start=2), torch.tensor([2, 5]))
    assert "found 1 at index [0], which the mask forbids" in fails(Categorical(2, mask=[1, 0]), torch.tensor([1]))
    assert "found [False, False] at index [1]" in fails(OneHot(2), torch.tensor([[1, 0], [0, 0]]).bool())
    assert "found category 1, which the mask forbids" in fails(OneHot(2, mask=[1, 0]), torch.tensor([0, 1]).bool())
    assert "from [0, 0] to [2, 1], found [0, 2]" in fails(MultiCategorical([3, 2]), torch.tensor([0, 2]))
    assert "found [0, 1], which the mask forbids" in fails(
        MultiCategorical([3, 2], mask=[[1, 0], [1, 1], [1, 1]]), torch.tensor([0, 1])
    )
    assert "each part of lengths [3, 2]" in fails(MultiOneHot([3, 2]), torch.zeros(5).bool())
    assert "expected 0 or 1, found 2 at index [0]" in fails(Binary(1), torch.tensor([2], dtype=torch.int8))
    assert "expected a tensor of dtype torch.int64, found int: 3" in fails(Categorical(5), 3)
    assert "expected Python data of batch shape [], found Tensor" in fails(NonTensor(), torch.zeros(2))


def test_errors_of_a_composite_name_the_key():
    spec = Composite(agents=Composite(position=Bounded(0, 1, shape=(2,))))
    td = spec.rand()
    td["agents", "position"] = torch.tensor([0.0, 9.0])
    assert "Under 'agents': Under 'position': Bounded" in fails(spec, td)
    del td["agents"]
    assert "The key 'agents' is missing" in fails(spec, td.set("other", torch.zeros(1)))


def test_type_check_names_the_key():
    with pytest.raises(SpecError, match=r"under 'reward' expected dtype torch.float32, found torch.float64"):
        Unbounded(1).type_check(torch.zeros(1).double(), "reward")


def test_impossible_specs_are_refused():
    for make in (
        lambda: Bounded(2, 1),
        lambda: Bounded(float("nan"), 1),
        lambda: Bounded(torch.zeros(3), 1, shape=(2,)),
        lambda: OneHot(3, shape=(2,)),
        lambda: Categorical(0),
        lambda: MultiCategorical([3, 0]),
        lambda: MultiCategorical([3, 2], shape=(3,)),
        lambda: MultiOneHot([3, 2], shape=(6,)),
        lambda: Binary(3, shape=(2,)),
        lambda: Binary(),
    ):
        with pytest.raises(SpecError):
            make()


def test_the_encoding_dimension_cannot_be_reshaped():
    for spec in (OneHot(4, (2, 4)), MultiOneHot([2, 2], (2, 4))):
        for change in (lambda s: s.flatten(), lambda s: s[..., 0], lambda s: s.unsqueeze(-1), lambda s: s.reshape(8)):
            with pytest.raises(SpecError, match="holds the encoding"):
                change(spec)


def test_indices_out_of_range_are_index_errors():
    with pytest.raises(IndexError):
        Unbounded((4, 3))[4]
    with pytest.raises(IndexError):
        Unbounded(3)[0, 0]
    assert [spec.shape for spec in Unbounded((2, 3))] == [(3,), (3,)]


# ---- equality


def test_equality_compares_bounds_masks_and_offsets():
    assert Bounded(0, 1, shape=(3,)) == Bounded(torch.zeros(3), torch.ones(3))
    assert Bounded(0, 1) != Bounded(0, 2) and Bounded(0, 1) != Bounded(0, 1, dtype=torch.float64)
    assert Categorical(3) != Categorical(3, mask=[1, 1, 0]) and Categorical(3) != Categorical(3, start=1)
    assert Categorical(3) != OneHot(3) and Unbounded(3) != Unbounded(2)
    assert MultiCategorical([2, 2]) != MultiCategorical([2, 3])
    assert len({Categorical(3), Categorical(3), Categorical(4)}) == 2


def test_the_batch_a_leaf_belongs_to_does_not_count():
    assert Composite(a=Unbounded((4, 3)), shape=(4,))["a"] == Unbounded((4, 3))


def test_spaces_show_bounds_and_counts():
    assert Bounded(0, 2, shape=(3,)).space.high.tolist() == [2.0] * 3
    assert Categorical(3).space.n == OneHot(3).space.n == 3 and Binary(4).space.n == 4
    assert [box.n for box in MultiCategorical([3, 2]).space] == [3, 2]
    assert Unbounded(1, dtype=torch.uint8).space.high.item() == 255
    assert Bounded(0, 1).domain == "continuous" and Categorical(2).domain == "discrete"


def test_bounds_of_floats_are_narrowed_to_the_integers_inside():
    spec = Bounded(-1.5, 2.5, dtype=torch.int64)
    assert (spec.low.item(), spec.high.item()) == (-1, 2)
    assert Bounded(float("-inf"), float("inf")).to(torch.uint8).high.item() == 255
