"""Prioritised slices: starts in proportion to priorities among those that fit, with weights and generations."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, PrioritizedSliceSampler, TensorDictReplayBuffer, native
from rl_core.errors import ReplayBufferError
from rl_core.testing import SamplerKit


@pytest.fixture(autouse=True, params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


class TestPrioritizedSliceSampler(SamplerKit):
    def make(self):
        return PrioritizedSliceSampler(10, 0.6, 0.4, slice_len=1, ends=torch.zeros(10**6, dtype=torch.bool))


def episode(number: int, n: int) -> TensorDict:
    t = torch.arange(n)
    done = (t == n - 1).unsqueeze(-1)
    return TensorDict(
        {"number": torch.full((n,), number), "t": t, "is_init": done & False, "next": {"done": done}}, [n]
    )


def buffer_of(capacity: int, batch_size: int, *, slice_len: int = 4, **kwargs) -> TensorDictReplayBuffer:
    arguments = {"alpha": 1.0, "beta": 1.0, "eps": 0.0, **kwargs}
    sampler = PrioritizedSliceSampler(capacity, slice_len=slice_len, **arguments)
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=sampler,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )


def slices_in(batch: TensorDict, length: int) -> Counter:
    numbers, steps = batch["number"].reshape(-1, length), batch["t"].reshape(-1, length)
    assert (numbers == numbers[:, :1]).all() and (steps.diff(dim=1) == 1).all()
    return Counter(zip(numbers[:, 0].tolist(), steps[:, 0].tolist(), strict=True))


def test_at_the_ring_edge_exactly_the_possible_slices_come_each_as_likely():
    buffer = buffer_of(10, 4000)
    buffer.extend(episode(0, 6))
    buffer.extend(episode(1, 6))
    batch = buffer.sample()
    found = slices_in(batch, 4)
    assert set(found) == {(0, 2), (1, 0), (1, 1), (1, 2)}
    assert all(abs(count - 250) < 5 * 250**0.5 for count in found.values())
    init = batch["is_init"].reshape(-1, 4)
    assert init[:, 0].all() and not init[:, 1:].any()


def test_before_the_ring_is_full_no_empty_slot_comes():
    buffer = buffer_of(100, 400)
    buffer.extend(episode(0, 7))
    assert set(slices_in(buffer.sample(), 4)) == {(0, 0), (0, 1), (0, 2), (0, 3)}


def test_starts_come_in_proportion_to_their_priorities_with_their_weights():
    buffer = buffer_of(20, 8000)
    buffer.extend(episode(0, 7))
    priority = torch.tensor([1.0, 2.0, 4.0, 8.0, 100.0, 100.0, 0.5])  # no slice of four starts at the last three
    buffer.update_priority(torch.arange(7), priority)
    batch = buffer.sample()
    found = slices_in(batch, 4)
    for start, share in enumerate((1, 2, 4, 8)):
        expected = 2000 * share / 15
        assert abs(found[0, start] - expected) < 5 * expected**0.5
    weights = batch["priority_weight"].reshape(-1, 4)
    assert (weights == weights[:, :1]).all()
    start = batch["t"].reshape(-1, 4)[:, 0]
    torch.testing.assert_close(weights[:, 0], 0.5 / priority[start])


def test_one_start_among_many_that_do_not_fit_is_found():
    buffer = buffer_of(4000, 400, slice_len=4)
    for number in range(1000):
        buffer.extend(episode(number, 4 if number == 500 else 3))
    buffer.update_priority(torch.tensor([1500]), torch.tensor([0.01]))
    assert set(slices_in(buffer.sample(), 4)) == {(500, 0)}


def test_priorities_of_all_rows_of_a_sample_can_be_handed_back_but_not_to_rows_that_are_gone():
    buffer = buffer_of(8, 8)
    buffer.extend(episode(0, 4))
    buffer.extend(episode(1, 4))
    batch = buffer.sample()
    buffer.extend(episode(2, 4))  # over episode 0
    batch["td_error"] = torch.where(batch["number"] == 0, 1000.0, 3.0)
    buffer.update_tensordict_priority(batch)
    stored = buffer.sampler.state_dict()["priority"]
    assert float(stored.max()) <= 3.0
    if (batch["number"] == 1).any():
        assert stored[4:].tolist() == [3.0] * 4


def test_short_episodes_come_whole_when_lengths_are_not_strict():
    buffer = buffer_of(20, 400, strict_length=False)
    buffer.extend(episode(0, 2))
    buffer.extend(episode(1, 4))
    batch = buffer.sample()
    assert batch["priority_weight"].shape == batch.batch_size == batch["index_generation"].shape
    starts = batch["is_init"].flatten().nonzero().flatten().tolist()
    parts = {tuple(batch["t"][a:b].tolist()) for a, b in zip(starts, [*starts[1:], len(batch)], strict=True)}
    assert parts == {(0, 1), (0, 1, 2, 3)}


def test_a_span_to_the_right_gives_shorter_slices():
    buffer = buffer_of(20, 400, span=(False, True))
    buffer.extend(episode(0, 5))
    batch = buffer.sample()
    starts = batch["is_init"].flatten().nonzero().flatten().tolist()
    parts = {tuple(batch["t"][a:b].tolist()) for a, b in zip(starts, [*starts[1:], len(batch)], strict=True)}
    assert parts == {(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4), (3, 4), (4,)}
    with pytest.raises(ReplayBufferError, match="only have a right side"):
        buffer_of(20, 400, span=True)


def test_no_slice_that_fits_is_an_error():
    buffer = buffer_of(20, 4)
    buffer.extend(episode(0, 3))
    with pytest.raises(ReplayBufferError, match="the longest of 1 pieces has 3"):
        buffer.sample()


def test_exponents_can_be_annealed_and_saved(tmp_path):
    first, second = buffer_of(20, 8), buffer_of(20, 8, beta=0.1)
    first.extend(episode(0, 9))
    first.update_priority(torch.arange(9), torch.arange(1.0, 10.0))
    first.sampler.beta = 0.7
    first.dumps(tmp_path / "saved")
    second.loads(tmp_path / "saved")
    one, other = first.sample(), second.sample()
    assert torch.equal(one["index"], other["index"]) and torch.equal(one["priority_weight"], other["priority_weight"])


def test_rows_that_are_never_stored_reach_no_priority():
    buffer = buffer_of(2, 2, slice_len=1)
    buffer.extend(episode(0, 4))  # the first two rows are overwritten by the last two of the same call
    assert set(buffer.sample()["t"].tolist()) <= {2, 3}
