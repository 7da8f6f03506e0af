"""ConsumingSampler: every row at most so often, however samples and writes alternate."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_buffers import ConsumingSampler, LazyTensorStorage, RandomSampler, ReplayBuffer
from rl_core.errors import ReplayBufferError
from rl_core.testing import SamplerKit


class TestConsumingSampler(SamplerKit):
    def make(self):
        return ConsumingSampler(10**6)  # the kit draws more often than a few times


def make(n: int, size: int = 10, batch_size: int = 3, **kwargs) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(size),
        consume_after_n_samples=n,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(1),
        **kwargs,
    )


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(1, 3),
    size=st.integers(1, 12),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 15)), min_size=1, max_size=25),
)
def test_counts_agree_with_a_table_of_all_draws(limit, size, steps):
    buffer = make(limit, size)
    drawn: Counter[int] = Counter()
    alive: list[int] = []
    written = lost = 0
    for writes, n in steps:
        if writes:
            new = list(range(written, written + n))
            buffer.extend(torch.tensor(new))
            lost += sum(drawn[row] < limit for row in (alive + new)[:-size] if row in alive)
            alive, written = (alive + new)[-size:], written + n
            continue
        left = [row for row in alive if drawn[row] < limit]
        assert buffer.sampler.left == len(left) and buffer.sampler.ran_out == (not left)
        if not left:
            with pytest.raises(ReplayBufferError):
                buffer.sample(n)
            continue
        batch, info = buffer.sample(n, return_info=True)
        assert len(batch) == len(batch.unique()) == min(n, len(left)) and set(batch.tolist()) <= set(left)
        drawn.update(batch.tolist())
        assert info["sample_count"].tolist() == [drawn[row] for row in batch.tolist()]
    assert buffer.sampler.unused == lost


def test_rows_are_drawn_uniformly():
    """The first row of a batch, over many fresh buffers' worth of draws."""
    counts = torch.zeros(6)
    buffer = make(1, 6, 2)
    for _ in range(1500):
        buffer.extend(torch.arange(6))
        counts[buffer.sample()[0]] += 1
    assert float((counts / 1500 - 1 / 6).abs().max()) < 0.04


@pytest.mark.parametrize("prefetch", [None, 2])
def test_an_iteration_ends_when_all_is_used_up_and_goes_on_with_new_rows(prefetch):
    buffer = make(2, prefetch=prefetch)
    buffer.extend(torch.arange(4))
    seen = torch.cat(list(buffer))
    assert sorted(seen.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(buffer) == []
    with pytest.raises(ReplayBufferError, match=r"each of the 4 rows was sampled 2 time\(s\)"):
        buffer.sample()
    buffer.add(torch.tensor(7))
    assert buffer.sample().tolist() == [7]


def test_a_used_up_slot_is_reused_and_what_is_lost_is_counted():
    buffer = make(1, 3)
    buffer.extend(torch.arange(3))
    buffer.sample(2)
    buffer.extend(torch.arange(10, 13))
    assert buffer.sampler.unused == 1 and sorted(buffer.sample().tolist()) == [10, 11, 12]
    buffer.empty()
    assert buffer.sampler.left == 0 and buffer.sampler.unused == 0


def test_the_counts_survive_a_save(tmp_path):
    buffer, loaded = make(2), make(2)
    buffer.extend(torch.arange(8))
    buffer.sample()
    buffer.dumps(tmp_path / "saved")
    loaded.loads(tmp_path / "saved")
    assert [batch.tolist() for batch in loaded] == [batch.tolist() for batch in buffer]


def test_it_takes_the_place_of_another_sampler():
    with pytest.raises(ReplayBufferError, match="consume_after_n_samples=1 chooses the sampler"):
        make(1, sampler=RandomSampler())
    with pytest.raises(ReplayBufferError, match="at least 1, got 0"):
        make(0)
