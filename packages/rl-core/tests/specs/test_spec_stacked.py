"""Stacks of specs: dense where they are alike, lazy where they differ."""

import copy
import json
import pickle

import pytest
import torch
from tensordict import LazyStackedTensorDict

from rl_core import (
    Bounded,
    Categorical,
    Choice,
    Composite,
    MultiCategorical,
    NonTensor,
    OneHot,
    Stacked,
    StackedComposite,
    TensorSpec,
    Unbounded,
    spec_from_dict,
    spec_to_dict,
)
from rl_core.errors import SpecError


def ragged():
    return torch.stack([Bounded(0, 1, shape=(2,)), Bounded(0, 1, shape=(3,))])


def uneven():
    return torch.stack(
        [
            Composite(a=Bounded(0, 1, shape=(2,)), only=Unbounded(1)),
            Composite(a=Bounded(0, 1, shape=(3,))),
        ]
    )


def test_equal_specs_stack_densely():
    assert torch.stack([OneHot(3)] * 2) == OneHot(3, (2, 3))
    assert torch.stack([Unbounded((4, 3))] * 2, 1) == Unbounded((4, 2, 3))
    dense = torch.stack([Composite(a=Unbounded(3))] * 2)
    assert dense == Composite(a=Unbounded((2, 3)), shape=(2,)) and dense["a"].batch_ndim == 1


def test_specs_that_differ_by_bounds_or_masks_stack_densely():
    boxes = torch.stack([Bounded(0, 1, shape=(2,)), Bounded(0, 5, shape=(2,))])
    assert type(boxes) is Bounded and boxes.high.tolist() == [[1, 1], [5, 5]] and boxes[1] == Bounded(0, 5, shape=(2,))
    masked = torch.stack([Categorical(3, mask=[1, 0, 1]), Categorical(3)])
    assert masked.mask.tolist() == [[True, False, True], [True, True, True]]
    both = torch.stack([Composite(a=Bounded(0, 1)), Composite(a=Bounded(0, 2))])
    assert type(both) is Composite and both["a"].high.tolist() == [1, 2]


def test_categories_of_different_counts_stack_lazily():
    stack = torch.stack([Categorical(2), Categorical(5)])
    assert type(stack) is Stacked and stack.shape == (2,) and stack[1] == Categorical(5)
    draws = stack.rand((200,))
    assert draws.shape == (200, 2) and draws.amax(0).tolist() == [1, 4] and stack.is_in(draws)
    assert not stack.is_in(torch.tensor([2, 2])) and stack.project(torch.tensor([9, 9])).tolist() == [1, 4]
    assert stack.cardinality() == 10 and stack.encode([1, 4]).tolist() == [1, 4]
    assert "Member 0 of the stack: Categorical" in stack.explain(torch.tensor([2, 2]))


def test_ragged_stacks_have_dynamic_shapes_and_nested_values():
    stack = ragged()
    assert stack.shape == (2, -1)
    value = stack.rand()
    assert value.is_nested and [part.shape[0] for part in value.unbind()] == [2, 3] and stack.is_in(value)
    assert stack.is_in(stack.zero()) and [part.tolist() for part in stack.zero().unbind()] == [[0, 0], [0, 0, 0]]
    with pytest.raises(SpecError, match="do not stack with leading dimensions"):
        stack.rand((4,))


def test_a_stack_is_indexed_along_its_dimension_and_across():
    stack = torch.stack([Categorical(2, (3,)), Categorical(5, (3,))], 1)
    assert stack.shape == (3, 2) and stack[:, 1] == Categorical(5, (3,))
    assert stack[0].shape == (2,) and stack[0, 1] == Categorical(5)
    assert stack[1:].shape == (2, 2) and stack[:, [1, 0]][0, 0].n == 5
    assert stack[..., 0].n == 2 and stack[:, 1:] == Categorical(5, (3, 1))
    assert [member.n for member in stack.unbind(1)] == [2, 5]


@pytest.mark.parametrize(
    "make", [ragged, uneven, lambda: torch.stack([Categorical(2), OneHot(3).to_categorical_spec()])]
)
def test_lazy_stacks_survive_every_rebuild(make):
    stack = make()
    for rebuilt in (
        stack.clone(),
        copy.deepcopy(stack),
        pickle.loads(pickle.dumps(stack)),
        stack.replace(),
        stack.expand(3, *stack.shape)[1],
        stack.unsqueeze(0).squeeze(0),
        torch.stack([stack, stack])[0],
        stack[:],
        spec_from_dict(json.loads(json.dumps(spec_to_dict(stack)))),
    ):
        assert type(rebuilt) is type(stack) and rebuilt == stack and hash(rebuilt) == hash(stack)
        assert stack.is_in(rebuilt.rand()) and rebuilt.is_in(stack.zero())


def test_composites_of_different_entries_stack_lazily():
    stack = uneven()
    assert type(stack) is StackedComposite and isinstance(stack, Composite) and stack.shape == (2,)
    assert list(stack.keys()) == ["a"] and stack["a"].shape == (2, -1) and "only" in stack[0]
    value = stack.rand((4,))
    assert isinstance(value, LazyStackedTensorDict) and value.batch_size == (4, 2) and stack.is_in(value)
    assert stack.is_in(stack.zero()) and not stack.is_in(stack.rand().exclude("a"))
    time = LazyStackedTensorDict.lazy_stack([stack.rand() for _ in range(5)], 1)
    assert time.batch_size == (2, 5) and stack.is_in(time)


def test_a_stacked_composite_is_projected_and_explained():
    stack = uneven()
    value = stack.rand()
    value[1]["a"] = torch.full((3,), 7.0)
    assert "Member 1 of the stack: Under 'a': Bounded" in stack.explain(value)
    assert stack.project(value)[1]["a"].tolist() == [1, 1, 1] and value[1]["a"][0] == 7


def test_setting_an_entry_of_a_stacked_composite_sets_its_rows():
    stack = uneven()
    stack.set("b", Unbounded((2, 4)))
    assert stack[0]["b"].shape == (4,) and stack["b"].shape == (2, 4)
    stack.pop("b")
    assert "b" not in stack
    stack.lock_()
    with pytest.raises(SpecError, match="locked"):
        stack.set("b", Unbounded((2, 4)))


def test_stacks_live_inside_composites():
    spec = Composite(group=uneven(), x=Unbounded(1))
    assert spec.is_in(spec.rand()) and spec.expand(3)[0] == spec and spec.expand(3).is_in(spec.expand(3).rand())
    env = Composite(a=torch.stack([Categorical(2), Categorical(5)]), shape=(2,))
    assert env.is_in(torch.stack([env.rand() for _ in range(6)], 1)) and env[1]["a"] == Categorical(5)


def test_only_alike_dtypes_and_dimensions_stack():
    with pytest.raises(SpecError, match="one dtype"):
        torch.stack([Categorical(2), Unbounded(())])
    with pytest.raises(SpecError, match="as many dimensions"):
        torch.stack([Categorical(2), Categorical(2, (3,))])


def test_other_torch_functions_work_on_specs():
    assert torch.squeeze(Unbounded((1, 3)), 0) == Unbounded(3)
    assert torch.index_select(Unbounded((4, 3)), 0, torch.tensor([0, 2])) == Unbounded((2, 3))
    assert torch.zeros_like(Bounded(2, 3)).item() == 2.0
    assert [s.shape for s in torch.unbind(Unbounded((2, 3)), 0)] == [(3,), (3,)]


# ---- JSON


@pytest.mark.parametrize(
    "spec",
    [
        Bounded(None, 1, shape=(2,)),
        Bounded(torch.tensor([0.1, 1.0]), 3.0, dtype=torch.float64),
        Categorical(4, mask=[1, 0, 0, 1], start=2),
        MultiCategorical([[3, 2], [1, 4]], start=1),
        NonTensor((2,), example_data={"text": ["a", 1]}),
        Choice([Bounded(0, 1), Bounded(2, 3)]),
        Composite(a=OneHot(3, (4, 3)), n=Composite(b=Unbounded((4, 1), dtype=torch.bool), shape=(4,)), shape=(4,)),
    ],
)
def test_specs_are_written_as_json_and_read_back(spec):
    read = spec_from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False)))
    assert read == spec and read.batch_ndim == spec.batch_ndim


def test_what_json_cannot_hold_is_named():
    with pytest.raises(SpecError, match="object, which cannot be written"):
        NonTensor(example_data=object()).to_dict()
    with pytest.raises(SpecError, match="Unknown kind of spec 'Nope'"):
        spec_from_dict({"format": 1, "kind": "Nope"})


def test_a_third_party_kind_is_not_written_silently():
    class Mine(Unbounded):
        pass

    with pytest.raises(SpecError, match="Mine is not one of the kinds"):
        Mine(1).to_dict()
    assert isinstance(Mine(3).expand(2, 3), Mine) and isinstance(Mine(1), TensorSpec)
