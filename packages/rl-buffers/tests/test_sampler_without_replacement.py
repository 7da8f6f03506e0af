"""Epochs: coverage, short last batches, drop_last, and when a new order is drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_buffers import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from rl_core.errors import ReplayBufferError


def filled(n: int, batch_size: int, **kwargs) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(**kwargs), batch_size=batch_size
    )
    buffer.extend(torch.arange(n))
    return buffer


@given(n=st.integers(1, 60), batch_size=st.integers(1, 70))
def test_an_epoch_is_a_permutation_whatever_the_sizes(n, batch_size):
    drawn = [batch.tolist() for batch in filled(n, batch_size)]
    assert sorted(x for batch in drawn for x in batch) == list(range(n))
    assert all(len(batch) == batch_size for batch in drawn[:-1])


def test_the_last_batch_is_short():
    assert [len(batch) for batch in filled(10, 4)] == [4, 4, 2]


def test_drop_last_leaves_the_short_batch_out():
    assert [len(batch) for batch in filled(10, 4, drop_last=True)] == [4, 4]


def test_drop_last_with_less_than_a_batch_says_so():
    with pytest.raises(ReplayBufferError, match=r"3 rows are stored, the batch size is 4.*drop_last=False"):
        filled(3, 4, drop_last=True).sample()


def test_without_shuffle_slots_ascend():
    assert [batch.tolist() for batch in filled(5, 2, shuffle=False)] == [[0, 1], [2, 3], [4]]


def test_single_samples_go_on_with_a_new_order_when_the_epoch_is_used_up():
    buffer = filled(6, 3)
    drawn = [buffer.sample().tolist() for _ in range(4)]
    assert sorted(drawn[0] + drawn[1]) == sorted(drawn[2] + drawn[3]) == list(range(6))


def test_overwriting_a_full_ring_starts_a_new_order():
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), sampler=SamplerWithoutReplacement(), batch_size=3)
    buffer.extend(torch.arange(6))
    buffer.sample()
    buffer.extend(torch.arange(10, 12))
    drawn = torch.cat([buffer.sample(), buffer.sample()]).tolist()
    assert sorted(drawn) == [2, 3, 4, 5, 10, 11]
