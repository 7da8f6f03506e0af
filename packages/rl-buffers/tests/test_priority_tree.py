"""The priority tree, kernels and twin: numbers by hand, fair draws, equal bits, and no slot that must not come."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_buffers import PriorityTree, native
from rl_buffers.trees.kernels import NativeEngine
from rl_buffers.trees.layout import tree_words, views
from rl_buffers.trees.reference import ReferenceEngine, _descend
from rl_core.errors import CheckpointError, ReplayBufferError

RAW = {"alpha": 1.0, "eps": 0.0}


@pytest.fixture(autouse=True, params=["native", "twin"])
def kernels(request, monkeypatch):
    """Each check runs with both implementations; without a compiler both are the twin."""
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield request.param
    native.load.cache_clear()


def filled(priorities: list[float], capacity: int | None = None) -> PriorityTree:
    tree = PriorityTree(capacity or len(priorities))
    tree.write(torch.arange(len(priorities)), **RAW)
    tree.update(torch.arange(len(priorities)), torch.tensor(priorities, dtype=torch.float64), **RAW)
    return tree


def priorities(tree: PriorityTree) -> list[float]:
    return tree.state_dict()["priority"].tolist()


def test_the_kernels_are_used_where_they_are_loaded(kernels):
    expected = NativeEngine if kernels == "native" and native.library() is not None else ReferenceEngine
    assert isinstance(PriorityTree(3)._engine, expected)


def test_sums_minima_and_maxima_are_those_of_the_live_rows():
    for n in (1, 7, 8, 9, 64, 65, 513, 5000):
        values = [float(1 + (7 * k) % 11) for k in range(n)]
        stats = filled(values, capacity=n + 13).stats()
        assert stats == (math.fsum(values), min(values), max(values), max(values), n)


def test_the_exponent_is_applied_once():
    tree = PriorityTree(5)
    tree.write(torch.arange(2), alpha=0.5, eps=0.0)
    tree.update(torch.tensor([1]), torch.tensor([16.0]), alpha=0.5, eps=0.0)
    tree.write(torch.tensor([2]), alpha=0.5, eps=0.0)  # takes the stored 4 as it is
    assert priorities(tree) == [1.0, 4.0, 4.0]


def test_the_first_row_has_the_priority_of_a_raw_one():
    tree = PriorityTree(2)
    tree.write(torch.tensor([0]), alpha=2.0, eps=0.5)
    tree.write(torch.tensor([1]), alpha=2.0, eps=0.5)
    tree.update(torch.tensor([1]), torch.tensor([1.0]), alpha=2.0, eps=0.5)
    assert priorities(tree) == [2.25, 2.25]


def test_of_equal_slots_the_last_wins():
    tree = filled([1.0] * 20)
    assert tree.update(torch.tensor([3, 5, 3, 3]), torch.tensor([9.0, 2.0, 8.0, 4.0]), **RAW) == 4
    assert priorities(tree)[3] == 4.0 and tree.stats().total == 18 + 2 + 4


def test_negative_slots_are_skipped():
    tree = filled([1.0] * 4)
    assert tree.update(torch.tensor([-1, 2, -5]), torch.tensor([math.nan, 3.0, 7.0]), **RAW) == 1
    assert priorities(tree) == [1.0, 1.0, 3.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.5])
def test_priorities_that_are_no_magnitudes_are_refused_and_nothing_is_set(bad):
    tree = filled([1.0] * 4)
    with pytest.raises(ReplayBufferError, match=rf"priority {bad} \(position 1, slot 3\) is not a finite number >= 0"):
        tree.update(torch.tensor([0, 3]), torch.tensor([7.0, bad]), **RAW)
    assert priorities(tree) == [1.0] * 4


def test_a_signed_error_is_answered_with_the_cure():
    with pytest.raises(ReplayBufferError, match=r"td_error\.abs\(\)"):
        filled([1.0]).update(torch.tensor([0]), torch.tensor([-2.0]), **RAW)


@pytest.mark.parametrize("slot", [3, 4, 99, 2**62])
def test_a_slot_without_a_row_is_refused(slot):
    tree = filled([1.0] * 3, capacity=4)
    with pytest.raises(ReplayBufferError, match=rf"slot {slot} \(position 1 of the index\) holds no row.*0 to 2"):
        tree.update(torch.tensor([0, slot]), torch.tensor([5.0, 5.0]), **RAW)
    assert priorities(tree) == [1.0] * 3


def test_a_written_slot_below_zero_is_refused():
    with pytest.raises(ReplayBufferError, match=r"slot -2 \(position 1 of the index\)"):
        PriorityTree(4).write(torch.tensor([0, -2]), **RAW)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ReplayBufferError, match=r"\[n\] each, got \[\[2\], \[3\]\]"):
        filled([1.0] * 3).update(torch.tensor([0, 1]), torch.ones(3), **RAW)


def test_strided_and_int32_slots_are_read_as_they_are():
    tree = filled([1.0] * 9)
    tree.update(torch.arange(9, dtype=torch.int32)[::4], torch.arange(10.0)[3::3], **RAW)
    assert priorities(tree) == [3.0, 1.0, 1.0, 1.0, 6.0, 1.0, 1.0, 1.0, 9.0]


def test_an_empty_tree_has_nothing_to_draw():
    tree = PriorityTree(4)
    with pytest.raises(ReplayBufferError, match="the storage is empty"):
        tree.sample(2, seed=0)
    tree.write(torch.arange(2), **RAW)
    tree.update(torch.arange(2), torch.zeros(2), **RAW)
    with pytest.raises(ReplayBufferError, match="none of the 2 rows has a priority above zero"):
        tree.sample(2, seed=0)


def test_a_tree_of_zeros_gives_new_rows_a_priority_above_zero():
    tree = filled([0.0, 0.0], capacity=3)
    tree.write(torch.tensor([2]), **RAW)
    assert tree.sample(10, seed=0).slots.tolist() == [2] * 10


# ------------------------------------------------------------------------------------------------- default priority
def test_an_outlier_counts_as_long_as_it_lives():
    tree = filled([1.0, 1000.0, 3.0, 2.0])
    tree.write(torch.tensor([0]), **RAW)
    assert priorities(tree) == [1000.0, 1000.0, 3.0, 2.0]
    tree.update(torch.tensor([0]), torch.tensor([0.5]), **RAW)
    tree.write(torch.tensor([1]), **RAW)  # the outlier is gone: the largest of the others counts
    assert priorities(tree) == [0.5, 3.0, 3.0, 2.0]


def test_an_outlier_that_was_corrected_counts_no_more():
    tree = filled([1.0, 1000.0, 3.0])
    tree.update(torch.tensor([1]), torch.tensor([2.0]), **RAW)
    tree.write(torch.tensor([0]), **RAW)
    assert priorities(tree) == [3.0, 2.0, 3.0]


def test_rows_that_replace_all_others_start_at_one():
    tree = filled([5.0, 6.0])
    tree.write(torch.tensor([0, 1]), **RAW)
    assert priorities(tree) == [1.0, 1.0]


def test_the_largest_ever_can_be_asked_for():
    tree = filled([1.0, 1000.0, 3.0])
    tree.update(torch.tensor([1]), torch.tensor([2.0]), **RAW)
    tree.write(torch.tensor([0]), **RAW, within=False)
    assert priorities(tree) == [1000.0, 2.0, 3.0]


# ------------------------------------------------------------------------------------------------- generations
def test_updates_of_rows_that_were_overwritten_are_dropped():
    tree = filled([1.0, 1.0, 1.0, 1.0])
    draw = tree.sample(4, seed=0)
    assert sorted(draw.slots.tolist()) == [0, 1, 2, 3] and draw.generation.tolist() == [1] * 4
    tree.write(torch.tensor([1, 2]), **RAW)
    assert tree.update(draw.slots, torch.full((4,), 9.0), draw.generation, **RAW) == 2
    assert priorities(tree) == [9.0, 1.0, 1.0, 9.0]
    fresh = tree.sample(4, seed=0)
    assert tree.update(fresh.slots, torch.full((4,), 2.0), fresh.generation, **RAW) == 4


def test_updates_of_rows_from_before_a_clear_are_dropped():
    tree = filled([1.0, 1.0])
    draw = tree.sample(2, seed=0)
    tree.clear()
    assert tree.update(draw.slots, torch.full((2,), 9.0), draw.generation, **RAW) == 0
    tree.write(torch.arange(2), **RAW)
    assert tree.update(draw.slots, torch.full((2,), 9.0), draw.generation, **RAW) == 0
    assert priorities(tree) == [1.0, 1.0]


# ------------------------------------------------------------------------------------------------- draws
def test_weights_are_those_of_the_formula():
    draw = filled([0.25, 1.0, 4.0, 16.0]).sample(85, seed=1, beta=0.5)
    counts = torch.bincount(draw.slots)
    assert counts.tolist() == [1, 4, 16, 64]  # the sum is 21.25, so each quarter holds one draw
    assert draw.weight.dtype == torch.float32
    for slot, weight in enumerate([1.0, 0.5, 0.25, 0.125]):
        assert bool((draw.weight[draw.slots == slot] == weight).all())


def test_weights_refer_to_the_smallest_row_of_the_buffer_not_of_the_batch():
    draw = filled([1e-12, 1.0]).sample(3, seed=0, beta=1.0, dtype=torch.float64)
    assert draw.slots.tolist() == [1, 1, 1] and torch.allclose(draw.weight, torch.tensor(1e-12, dtype=torch.float64))


def chi_square(observed: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def test_independent_draws_have_the_right_frequencies():
    shares = torch.rand(600, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3 + 0.01
    tree, n = filled(shares.tolist()), 300_000
    drawn = torch.cat([tree.sample(n // 3, seed, stratified=False).slots for seed in range(3)])
    statistic = chi_square(torch.bincount(drawn, minlength=600), n * shares / shares.sum())
    # Chi-square with 599 degrees of freedom: mean 599, standard deviation 34.6.
    assert 599 - 5 * 34.6 < statistic < 599 + 5 * 34.6


def test_stratified_draws_have_the_right_frequencies_and_vary_less():
    shares = torch.rand(600, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.01
    tree, n = filled(shares.tolist()), 30_000
    expected = n * shares / shares.sum()
    counts = torch.bincount(tree.sample(n, seed=5).slots, minlength=600)
    assert bool(((counts - expected).abs() <= 2).all())
    drawn = torch.cat([tree.sample(100, seed).slots for seed in range(500)])
    statistic = chi_square(torch.bincount(drawn, minlength=600), 50_000 * shares / shares.sum())
    assert 300 < statistic < 599 + 5 * 34.6


def test_any_part_of_a_stratified_batch_is_a_fair_sample():
    tree = filled([1.0] * 100)
    means = [tree.sample(100, seed).slots[:50].double().mean() for seed in range(200)]
    # The mean of 50 of 100 numbers drawn without replacement: 49.5 +- 2.9 each, so +- 0.21 over 200.
    assert abs(float(torch.stack(means).mean()) - 49.5) < 0.9


def test_equal_seeds_give_equal_draws():
    tree = filled([1.0, 2.0, 3.0] * 50)
    for stratified in (True, False):
        first, second, third = (tree.sample(40, seed, stratified=stratified) for seed in (3, 3, 4))
        assert torch.equal(first.slots, second.slots) and not torch.equal(first.slots, third.slots)


def test_a_million_draws_never_end_on_a_row_of_priority_zero():
    generator = torch.Generator().manual_seed(2)
    shares = torch.rand(100, dtype=torch.float64, generator=generator) + 1e-8
    shares[torch.randperm(100, generator=generator)[:30]] = 0.0
    tree = filled(shares.tolist(), capacity=500)
    counts = torch.zeros(100, dtype=torch.int64)
    for seed in range(10):
        index = tree.sample(100_000, seed, stratified=seed % 2 == 0).slots
        assert int(index.min()) >= 0 and int(index.max()) < 100
        counts += torch.bincount(index, minlength=100)
    assert int(counts[shares == 0].sum()) == 0
    share = shares / shares.sum()
    assert bool(((counts - 1e6 * share).abs() <= 4.5 * (1e6 * share * (1 - share)).sqrt()).all())


def test_draws_stay_right_through_a_thousand_random_updates(kernels):
    generator = torch.Generator().manual_seed(3)
    tree = filled([1.0] * 100, capacity=500)
    current = torch.ones(100, dtype=torch.float64)
    for round_ in range(1000 if kernels == "native" else 100):
        index = torch.randint(100, (10,), generator=generator)
        raw = torch.rand(10, dtype=torch.float64, generator=generator) * (torch.rand(10, generator=generator) > 0.3)
        tree.update(index, raw, **RAW)
        for slot, value in zip(index.tolist(), raw.tolist(), strict=True):
            current[slot] = value
        drawn = tree.sample(50, round_).slots
        assert bool((current[drawn] > 0).all())
    assert priorities(tree) == current.tolist()


def test_masses_at_and_beyond_the_edges_end_on_rows_that_can_be_drawn():
    tree = filled([0.0, 0.1, 0.0, 0.7, 0.0, *[0.0] * 20, 0.2, 0.0])
    total = tree.stats().total
    masses = [0.0, 5e-324, math.nextafter(total, 0.0), total, 2 * total, math.inf]
    slots = _descend(views(tree.memory), torch.tensor(masses, dtype=torch.float64).numpy())
    assert slots.tolist() == [1, 1, 25, 25, 25, 25]


# ------------------------------------------------------------------------------------------------- twin
operation = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 10**6), st.integers(1, 300), st.booleans()),
    st.tuples(st.just("rewrite"), st.lists(st.integers(0, 10**6), max_size=20), st.just(0), st.booleans()),
    st.tuples(st.just("update"), st.integers(0, 10**6), st.integers(0, 700), st.booleans()),
    st.tuples(st.just("sample"), st.integers(0, 2**63 - 1), st.integers(1, 300), st.booleans()),
    st.tuples(st.just("clear"), st.just(0), st.just(0), st.just(False)),
)


def apply(tree: PriorityTree, name: str, number, n: int, flag: bool, capacity: int) -> list:
    live = tree.stats().live
    if name == "write":
        first = number % (live + 1) % capacity
        tree.write(torch.arange(first, min(first + n, capacity)), alpha=0.6, eps=1e-3, within=flag)
    elif name == "rewrite" and live:
        tree.write(torch.tensor([k % live for k in number], dtype=torch.int64), alpha=0.6, eps=1e-3, within=flag)
    elif name == "update" and live:
        generator = torch.Generator().manual_seed(number)
        index = torch.randint(-1, live, (n,), generator=generator)
        raw = torch.rand(n, dtype=torch.float64, generator=generator).log().abs() ** 3
        raw[torch.rand(n, generator=generator) < 0.1] = 0.0
        seen = torch.randint(1, 3, (n,), generator=generator) if flag else None
        return [tree.update(index, raw, seen, alpha=0.6, eps=0.0)]
    elif name == "sample" and tree.stats().total > 0:
        return [x.tolist() for x in tree.sample(n, number, beta=0.4, stratified=flag, dtype=torch.float64)]
    elif name == "clear":
        tree.clear()
    return []


@settings(max_examples=60, deadline=None)
@given(capacity=st.sampled_from([1, 8, 9, 63, 64, 65, 511, 3000]), operations=st.lists(operation, max_size=25))
def test_kernels_and_twin_agree_to_the_last_bit(capacity, operations):
    trees = [PriorityTree(capacity), PriorityTree(capacity)]
    trees[1]._engine = ReferenceEngine(threading.Lock())
    for name, number, n, flag in operations:
        results = [apply(tree, name, number, n, flag, capacity) for tree in trees]
        assert results[0] == results[1]
        assert torch.equal(trees[0].memory, trees[1].memory), name


# ------------------------------------------------------------------------------------------------- memory
def test_a_slot_takes_less_than_forty_bytes():
    for capacity in (1_000, 10_000, 1_000_000):
        memory = PriorityTree(capacity).memory
        assert memory.numel() * memory.element_size() <= 20 * capacity
        assert memory.numel() == tree_words(capacity)


def test_a_tree_grows_with_its_storage_and_keeps_everything():
    tree = filled([2.0, 5.0], capacity=2)
    tree.write(torch.tensor([1]), **RAW)
    tree.write(torch.tensor([30]), **RAW)
    state = tree.state_dict()
    assert state["priority"].tolist() == [2.0, 2.0, *[0.0] * 28, 2.0] and state["generation"].tolist()[:2] == [1, 2]
    assert tree.stats().largest_ever == 5.0


def test_a_storage_without_limit_starts_with_a_small_tree():
    tree = PriorityTree(2**62)
    assert tree.memory.numel() < 10**6
    tree.write(torch.tensor([2**17]), **RAW)
    assert tree.capacity >= 2**17 + 1


def test_copies_and_pickles_are_trees_of_their_own():
    tree = filled([1.0, 2.0, 3.0], capacity=5)
    for other in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert torch.equal(other.memory, tree.memory)
        other.update(torch.tensor([0]), torch.tensor([9.0]), **RAW)
        assert priorities(tree) == [1.0, 2.0, 3.0] and priorities(other) == [9.0, 2.0, 3.0]


def test_a_state_goes_from_one_tree_to_another():
    tree, other = filled([1.0, 7.0, 3.0], capacity=9), filled([4.0] * 9)
    tree.write(torch.tensor([0]), **RAW)
    other.load_state_dict(tree.state_dict())
    assert torch.equal(other.memory[10:12], tree.memory[10:12])  # live rows, largest ever
    assert other.stats() == tree.stats() and priorities(other) == [7.0, 7.0, 3.0]
    assert torch.equal(other.sample(50, 1).slots, tree.sample(50, 1).slots)


def test_a_damaged_state_is_refused():
    with pytest.raises(CheckpointError, match=r"\[n\] each"):
        PriorityTree(3).load_state_dict(
            {"priority": torch.ones(2), "generation": torch.ones(3, dtype=torch.int64), "largest_ever": 1.0}
        )
    with pytest.raises(ReplayBufferError, match=r"priority -1\.0"):
        PriorityTree(3).load_state_dict(
            {"priority": -torch.ones(2), "generation": torch.ones(2, dtype=torch.int64), "largest_ever": 1.0}
        )


def test_a_capacity_below_one_is_refused():
    with pytest.raises(ReplayBufferError, match="at least 1, got 0"):
        PriorityTree(0)
