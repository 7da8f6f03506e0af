"""The row gather, native and twin: equal to index_select for any leaves, and safe for any index."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_buffers import native
from rl_buffers.gather import RowGather
from rl_buffers.gather_reference import gather_rows_reference
from rl_core.errors import ReplayBufferError

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.uint8,
    torch.bool, torch.complex64,
]  # fmt: skip


@pytest.fixture(params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    if request.param == "native" and native.library() is None:
        pytest.skip("the kernels are not installed")
    yield request.param
    native.load.cache_clear()


def random_leaf(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator)
    return raw.to(dtype)


leaves_strategy = st.lists(
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=5
)


@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(1, 30), specs=leaves_strategy, n=st.integers(0, 40), data=st.data())
def test_gather_equals_index_select_for_any_dtype_and_shape(capacity, specs, n, data):
    leaves = [random_leaf(dtype, (capacity, *shape), i) for i, (dtype, shape) in enumerate(specs)]
    live = data.draw(st.integers(1, capacity))
    index = torch.tensor(data.draw(st.lists(st.integers(0, live - 1), min_size=n, max_size=n)), dtype=torch.int64)
    expected = [leaf.index_select(0, index) for leaf in leaves]
    for gathered in (RowGather(leaves)(index, live), gather_rows_reference(leaves, index, live)):
        for got, want in zip(gathered, expected, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want)


@settings(max_examples=100, deadline=None)
@given(good=st.lists(st.integers(0, 6), max_size=10), bad=st.one_of(st.integers(7, 2**62), st.integers(-(2**62), -1)))
def test_a_bad_index_anywhere_is_an_error_that_names_slot_and_position(good, bad):
    leaves = [torch.zeros(10, 3), torch.zeros(10, dtype=torch.uint8)]
    index = torch.tensor([*good, bad, 3], dtype=torch.int64)
    for gather in (RowGather(leaves), lambda index, live: gather_rows_reference(leaves, index, live)):
        with pytest.raises(ReplayBufferError, match=rf"slot {bad} \(position {len(good)} of the index\).*0 to 6"):
            gather(index, 7)


def test_an_empty_storage_has_no_slot(kernels):
    with pytest.raises(ReplayBufferError, match="the storage is empty"):
        RowGather([torch.zeros(4)])(torch.tensor([0]), 0)


def test_a_strided_index_is_read_as_it_is(kernels):
    index = torch.arange(8)[::2]
    assert RowGather([torch.arange(8)])(index, 8)[0].tolist() == [0, 2, 4, 6]


def test_an_int32_index_is_read_as_it_is(kernels):
    assert RowGather([torch.arange(8)])(torch.tensor([5, 1], dtype=torch.int32), 8)[0].tolist() == [5, 1]


def test_the_result_shares_no_memory_with_the_rows(kernels):
    leaf = torch.zeros(4, 2)
    RowGather([leaf])(torch.tensor([1]), 4)[0].fill_(9.0)
    assert leaf.sum() == 0


def test_rows_longer_than_a_cache_line_are_copied_whole(kernels):
    leaf = torch.arange(5 * 1003, dtype=torch.int16).reshape(5, 1003)
    assert torch.equal(RowGather([leaf])(torch.tensor([4, 0, 4]), 5)[0], leaf.index_select(0, torch.tensor([4, 0, 4])))


def test_the_native_kernel_is_used_where_it_is_installed(kernels):
    assert (RowGather([torch.zeros(2)])._kernel is not None) == (kernels == "native")
