"""C03, P02, P09: what is drawn, zero and projected is legal, masked or not, and native values keep their offset."""

import pytest
import torch

from rl_core import (
    Binary,
    Bounded,
    Categorical,
    Choice,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from rl_core.errors import SpecError

MASK = torch.tensor([True, False, False, True])


def row(*numbers, dtype=torch.bool):
    return torch.tensor(numbers, dtype=dtype)


# ---- C03


def test_zero_of_a_masked_one_hot_is_its_first_legal_category():
    assert OneHot(4, mask=MASK).zero().tolist() == [True, False, False, False]
    assert OneHot(4, mask=~MASK).zero((2,)).int().tolist() == [[0, 1, 0, 0]] * 2


def test_zero_of_a_box_above_zero_is_its_lower_bound():
    assert Bounded(low=2, high=3, shape=(2,)).zero().tolist() == [2.0, 2.0]
    assert Bounded(low=-3, high=-2).zero().item() == -2.0
    assert Bounded(low=-1, high=1).zero().item() == 0.0


def test_a_composite_of_them_gives_legal_zeros():
    spec = Composite(a=OneHot(4, mask=MASK), b=Bounded(low=2, high=3))
    zero = spec.zero((5,))
    assert zero["a"].sum(-1).tolist() == [1] * 5 and zero["b"].min() >= 2
    assert spec.is_in(zero)


def test_draws_never_pick_what_the_mask_forbids():
    assert OneHot(4, mask=MASK).rand((1000,)).sum(0).nonzero().flatten().tolist() == [0, 3]
    assert Categorical(4, mask=MASK).rand((1000,)).unique().tolist() == [0, 3]


def test_draws_pick_every_legal_category_about_as_often():
    torch.manual_seed(0)
    counts = Categorical(4, mask=[1, 0, 1, 1]).rand((30_000,)).bincount()
    assert counts[1] == 0 and (counts[[0, 2, 3]] - 10_000).abs().max() < 400


@pytest.mark.parametrize("start", [[0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
def test_projecting_onto_a_masked_one_hot_gives_a_legal_row(start):
    projected = OneHot(4, mask=MASK).project(torch.tensor(start, dtype=torch.bool))
    assert projected.sum() == 1 and not projected[1:3].any()


def test_projecting_scores_onto_a_one_hot_takes_the_best_legal_category():
    scores = torch.tensor([0.1, 9.0, 5.0, 0.2])
    assert OneHot(4, mask=MASK).project(scores).int().tolist() == [0, 0, 0, 1]
    assert OneHot(4).project(scores).int().tolist() == [0, 1, 0, 0]


def test_projecting_a_legal_value_returns_it_unchanged():
    spec, value = OneHot(4, mask=MASK), row(0, 0, 0, 1)
    assert spec.project(value) is value


def test_projecting_onto_a_box_clamps():
    spec = Bounded(low=2, high=3)
    assert spec.project(torch.tensor(7.0)).item() == 3.0 and spec.project(torch.tensor(-1.0)).item() == 2.0


def test_projecting_onto_a_masked_categorical_takes_the_nearest_legal_number():
    spec = Categorical(5, mask=[1, 0, 0, 0, 1])
    assert spec.project(torch.tensor([1, 2, 3, 9, -4])).tolist() == [0, 0, 4, 4, 0]
    assert spec.project(torch.tensor([3.4])).dtype == torch.int64


def test_a_composite_is_projected_without_touching_the_argument():
    spec = Composite(a=Bounded(0, 1), nested=Composite(b=Bounded(0, 1)))
    td = spec.rand()
    td["a"] = torch.tensor(4.0)
    td["nested", "b"] = torch.tensor(-4.0)
    projected = spec.project(td)
    assert projected["a"] == 1.0 and projected["nested", "b"] == 0.0
    assert td["a"] == 4.0 and td["nested", "b"] == -4.0


def test_blank_is_zero_even_where_that_is_illegal():
    spec = OneHot(3)
    assert not spec.blank().any() and not spec.is_in(spec.blank())


def test_one_is_legal():
    assert Bounded(2, 3).one() == 2.0 and Categorical(1).one() == 0 and OneHot(3).one().sum() == 1
    assert Binary(3).one().tolist() == [1, 1, 1]


# ---- masks


def test_a_mask_may_differ_by_row():
    spec = Categorical(3, (2,), mask=[[1, 0, 0], [0, 0, 1]])
    assert spec.rand((50,)).unique(dim=0).tolist() == [[0, 2]]
    assert spec.is_in(torch.tensor([0, 2])) and not spec.is_in(torch.tensor([2, 0]))
    assert spec[0].mask.tolist() == [True, False, False] and spec[1].zero() == 2


def test_update_mask_changes_draws_checks_and_enumeration():
    spec = Categorical(3)
    spec.update_mask([False, True, False])
    assert spec.rand() == 1 and not spec.is_in(torch.tensor(0)) and spec.enumerate(use_mask=True).tolist() == [1]
    spec.update_mask(None)
    assert spec.is_in(torch.tensor(0)) and len(spec.enumerate(use_mask=True)) == 3


def test_a_mask_updated_inside_a_composite_counts():
    spec = Composite(action=OneHot(3), shape=())
    spec["action"].update_mask([False, False, True])
    assert spec.rand((9,))["action"][..., 2].all()


def test_a_row_that_allows_nothing_may_be_set_but_not_drawn_from():
    spec = OneHot(3, (2, 3))
    spec.update_mask([[1, 0, 0], [0, 0, 0]])  # the second game is over
    with pytest.raises(SpecError, match=r"row \[1\] allows no category"):
        spec.rand()
    with pytest.raises(SpecError, match="allows no category"):
        OneHot(3, mask=[0, 0, 0])


def test_a_mask_of_another_size_is_refused():
    with pytest.raises(SpecError, match=r"must broadcast to \[3\]"):
        Categorical(3, mask=[1, 0])


def test_a_mask_differing_by_row_aligns_with_a_rollout():
    spec = Composite(action=OneHot(2, (2, 2), mask=[[1, 0], [0, 1]]), shape=(2,))
    rollout = torch.stack([spec.rand() for _ in range(5)], 1)  # [2, 5]
    assert spec.is_in(rollout) and spec["action"].is_in(rollout["action"])
    assert not spec["action"].is_in(rollout["action"].flip(0))


# ---- P09: offsets


def test_a_categorical_with_an_offset_holds_native_numbers():
    spec = Categorical(19, start=2)
    assert spec.is_in(torch.tensor(20)) and not spec.is_in(torch.tensor(1)) and not spec.is_in(torch.tensor(21))
    draws = spec.rand((500,))
    assert draws.min() >= 2 and draws.max() <= 20


def test_the_last_number_of_an_offset_range_has_a_one_hot():
    spec = OneHot(19, start=2)
    hot = spec.encode(20)
    assert hot.shape == (19,) and hot[18] and hot.sum() == 1 and spec.to_numpy(hot).item() == 20
    with pytest.raises(SpecError, match="from 2 to 20, found 21"):
        spec.encode(21)


def test_offsets_may_be_negative():
    spec = Categorical(3, start=-1)
    assert spec.zero() == 0 and spec.enumerate().tolist() == [-1, 0, 1]
    assert spec.to_one_hot(torch.tensor(-1)).tolist() == [True, False, False]


def test_offsets_differ_by_part():
    spec = MultiCategorical([3, 2], start=[1, 5])
    assert spec.enumerate()[0].tolist() == [1, 5] and spec.is_in(torch.tensor([3, 6]))
    hot = spec.to_one_hot_spec()
    assert hot.encode([3, 6]).int().tolist() == [0, 0, 1, 0, 1]
    assert hot.to_numpy(hot.encode([3, 6])).tolist() == [3, 6]


# ---- draws by kind


def test_integers_include_both_bounds():
    assert Bounded(0, 2, dtype=torch.int64).rand((200,)).unique().tolist() == [0, 1, 2]
    spec = Bounded(torch.tensor([0, 5]), torch.tensor([1, 6]))
    assert spec.rand((200,)).unique(dim=0).tolist() == [[0, 5], [0, 6], [1, 5], [1, 6]]


def test_unbounded_draws_by_dtype():
    torch.manual_seed(0)
    normal = Unbounded(()).rand((20_000,))
    assert abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05
    assert Unbounded((), dtype=torch.bool).rand((100,)).unique().tolist() == [False, True]
    small = Unbounded((), dtype=torch.int8).rand((20_000,))
    assert small.min() == -128 and small.max() == 127


def test_draws_follow_the_seed():
    spec = Composite(a=Unbounded(3), b=OneHot(5), c=Bounded(0, 1, shape=(2,)))
    torch.manual_seed(3)
    first = spec.rand()
    torch.manual_seed(3)
    assert (spec.rand() == first).all()


@pytest.mark.parametrize(("low", "high"), [(0.0, None), (None, 0.0), (None, None), (-3e38, 3e38)])
def test_infinite_and_overflowing_widths_draw_members(low, high):
    spec = Bounded(low, high, shape=(3,))
    draws = spec.rand((500,))
    assert spec.is_in(draws) and draws.isfinite().all() and draws.unique().numel() > 1000


def test_float_draws_stay_inside_bounds_whose_difference_is_rounded():
    spec = Bounded(-0.7, 0.1)
    assert spec.is_in(spec.rand((100_000,)))


def test_the_full_range_of_int64_is_drawn():
    spec = Bounded(dtype=torch.int64, shape=(100,))
    draws = spec.rand()
    assert (draws < 0).any() and (draws > 0).any() and spec.cardinality() == 2**6400


def test_dynamic_dimensions_become_one():
    spec = Unbounded((-1, 3))
    assert spec.rand().shape == (1, 3) and spec.zero((2,)).shape == (2, 1, 3)
    assert spec.is_in(torch.zeros(7, 3)) and not spec.is_in(torch.zeros(7, 2))
    assert Unbounded((5, 3)).make_neg_dim(0) == spec
    assert spec.expand(4, -1, 3).shape == (4, -1, 3) and spec.unsqueeze(0)[0] == spec


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.float16, torch.bfloat16, torch.bool],
)
def test_every_dtype_draws_and_projects_members(dtype):
    for spec in (
        Bounded(0, 1, shape=(40,), dtype=dtype),
        Unbounded(40, dtype=dtype),
        Categorical(2, (40,), dtype=dtype),
        OneHot(3, dtype=dtype, mask=[0, 1, 1]),
        MultiCategorical([2, 2], dtype=dtype),
        Binary(40, dtype=dtype),
    ):
        assert spec.is_in(spec.rand((3,))) and spec.is_in(spec.zero()) and spec.is_in(spec.project(spec.blank()))


def test_projecting_floats_onto_integers_rounds_and_does_not_overflow():
    spec = Bounded(0, 2**31 - 1, dtype=torch.int32, shape=(4,))
    found = spec.project(torch.tensor([1.6, 1e30, -1e30, float("inf")]))
    assert found.tolist() == [2, 2**31 - 1, 0, 2**31 - 1] and found.dtype == torch.int32


def test_a_choice_draws_from_each_and_admits_each():
    spec = Choice([Bounded(0, 1), Bounded(4, 5)])
    draws = torch.stack([spec.rand() for _ in range(60)])
    assert (draws <= 1).any() and (draws >= 4).any() and not ((draws > 1) & (draws < 4)).any()
    assert spec.is_in(torch.tensor(4.5)) and not spec.is_in(torch.tensor(2.0))
    fixed = Choice([torch.tensor(1), torch.tensor(7)])
    assert fixed.is_in(torch.tensor(7)) and fixed.project(torch.tensor(3)) == 1


def test_an_unknown_number_of_categories_needs_a_provisional_one_to_draw():
    spec = Categorical(-1)
    assert spec.is_in(torch.tensor(10**6)) and not spec.is_in(torch.tensor(-1))
    with pytest.raises(SpecError, match="set_provisional_n"):
        spec.rand()
    spec.set_provisional_n(3)
    assert spec.rand((50,)).unique().tolist() == [0, 1, 2]


# ---- several parts


def test_equal_counts_are_not_a_batch():
    equal, unequal = MultiCategorical([5, 5]), MultiCategorical([5, 4])
    assert equal.shape == unequal.shape == (2,) and type(equal) is type(unequal)
    assert equal.rand((100,)).max() <= 4
    equal.update_mask(torch.eye(5))  # a joint mask of pairs
    draws = equal.rand((200,))
    assert (draws[:, 0] == draws[:, 1]).all() and draws[:, 0].unique().tolist() == [0, 1, 2, 3, 4]
    assert equal.is_in(torch.tensor([3, 3])) and not equal.is_in(torch.tensor([3, 2]))


def test_a_joint_mask_works_for_one_hots_and_batches():
    joint = torch.zeros(2, 3, 2, dtype=torch.bool)
    joint[0, 2, 1] = joint[1, 0, 0] = True
    spec = MultiOneHot([3, 2], (2, 5), mask=joint)
    assert spec.rand().int().tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]
    assert spec.project(torch.zeros(2, 5).bool()).int().tolist() == spec.rand().int().tolist()
    assert spec[1].rand().int().tolist() == [1, 0, 0, 1, 0]
    assert spec.to_categorical_spec().rand().tolist() == [[2, 1], [0, 0]]


def test_projecting_onto_a_joint_mask_takes_the_nearest_pair():
    spec = MultiCategorical([4, 4], mask=torch.eye(4))
    assert spec.project(torch.tensor([[3, 2], [0, 1]])).tolist() == [[2, 2], [0, 0]]
    assert spec.project(torch.tensor([[2, 2]])).tolist() == [[2, 2]]


def test_a_mask_per_part_is_followed():
    spec = MultiCategorical([3, 2], mask=[1, 0, 1, 0, 1])
    assert spec.rand((100,)).unique(dim=0).tolist() == [[0, 1], [2, 1]]
    assert spec.project(torch.tensor([1, 0])).tolist() == [0, 1]
    assert spec.enumerate(use_mask=True).tolist() == [[0, 1], [2, 1]]


def test_counts_of_two_dimensions_become_one_hot_and_back():
    spec = MultiCategorical([[3, 2], [1, 4]])
    assert spec.shape == (2, 2) and spec.cardinality() == 24
    hot = spec.to_one_hot(torch.tensor([[2, 0], [0, 3]]))
    assert hot.int().tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 0, 1]
    assert spec.to_one_hot_spec().to_categorical(hot).tolist() == [[2, 0], [0, 3]]


def test_indexing_the_parts_gives_their_counts():
    spec = MultiCategorical([[3, 2], [1, 4]], start=1)
    assert spec[0] == MultiCategorical([3, 2], start=1)
    assert spec[1, 1] == Categorical(4, start=1)
    assert spec[:, 0].nvec.tolist() == [3, 1]
    assert [part.n for part in MultiCategorical([3, 2]).split()] == [3, 2]


def test_index_gathers_values_by_category():
    values = torch.tensor([10.0, 20.0, 30.0])
    assert Categorical(3).index(torch.tensor(2), values) == 30.0
    assert OneHot(3).index(OneHot(3).encode([0, 1]), values.expand(2, 3)).tolist() == [10.0, 20.0]
