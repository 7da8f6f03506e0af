"""Prioritised buffers: what samples carry, which rows an update reaches, and that all of it survives a save."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    native,
)
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.registry import buffers, samplers
from rl_core.testing import BufferKit, SamplerKit


@pytest.fixture(autouse=True, params=["native", "twin"])
def kernels(request, monkeypatch):
    """Each check runs with both implementations; without a compiler both are the twin."""
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


class TestPrioritizedSampler(SamplerKit):
    def make(self):
        return PrioritizedSampler(1000, alpha=0.6, beta=0.4)


class TestPrioritizedSamplerWithIndependentDraws(SamplerKit):
    def make(self):
        return PrioritizedSampler(10, alpha=0.6, beta=0.4, stratified=False)


class TestTensorDictPrioritizedReplayBuffer(BufferKit):
    def make(self, max_size, batch_size):
        return TensorDictPrioritizedReplayBuffer(
            alpha=0.6,
            beta=0.4,
            storage=LazyTensorStorage(max_size),
            batch_size=batch_size,
            generator=torch.Generator().manual_seed(0),
        )


class TestPrioritizedReplayBufferOfAList(BufferKit):
    fixes_structure = False

    def make(self, max_size, batch_size):
        return PrioritizedReplayBuffer(
            alpha=0.6,
            beta=0.4,
            storage=ListStorage(max_size),
            batch_size=batch_size,
            generator=torch.Generator().manual_seed(0),
        )


def rows(start: int, n: int) -> TensorDict:
    return TensorDict({"x": torch.arange(start, start + n)}, [n])


def buffer(max_size: int = 4, filled: int = 4, *, alpha: float = 1.0, beta: float = 1.0, **kwargs):
    kwargs = {"eps": 0.0, "storage": LazyTensorStorage(max_size), "batch_size": 4, **kwargs}
    made = TensorDictPrioritizedReplayBuffer(alpha=alpha, beta=beta, **kwargs)
    made.extend(rows(0, filled))
    return made


def stored(made) -> list[float]:
    return made.sampler.state_dict()["priority"].tolist()


# ------------------------------------------------------------------------------------------------- samples
def test_a_sample_carries_slots_weights_and_generations():
    made = buffer(alpha=0.5)
    made.update_priority(torch.arange(4), torch.tensor([0.0625, 1.0, 16.0, 256.0]))  # stored: 1/4, 1, 4, 16
    sample = made.sample(85)
    assert torch.equal(sample["index"], sample["x"])
    assert torch.bincount(sample["x"]).tolist() == [1, 4, 16, 64]
    assert torch.equal(sample["priority_weight"], torch.tensor([1.0, 1 / 4, 1 / 16, 1 / 64])[sample["x"]])
    assert sample["index_generation"].tolist() == [1] * 85


def test_the_info_of_a_plain_buffer_has_the_same():
    made = PrioritizedReplayBuffer(alpha=1.0, beta=0.5, eps=0.0, storage=LazyTensorStorage(4), batch_size=5)
    made.extend(torch.arange(2))
    made.update_priority(torch.tensor([0, 1]), torch.tensor([1.0, 4.0]))
    batch, info = made.sample(return_info=True)
    assert torch.bincount(batch).tolist() == [1, 4] and set(info) == {"index", "priority_weight", "index_generation"}
    assert torch.equal(info["priority_weight"], torch.tensor([1.0, 0.5])[batch])


def test_beta_zero_gives_weights_of_one_and_alpha_zero_draws_uniformly():
    made = buffer(alpha=0.0, beta=0.0)
    made.update_priority(torch.arange(4), torch.tensor([1e-3, 1.0, 5.0, 1e6]))
    sample = made.sample(400)
    assert bool((sample["priority_weight"] == 1).all()) and torch.bincount(sample["x"]).tolist() == [100] * 4


def test_weights_have_the_dtype_asked_for():
    assert buffer(dtype=torch.float64).sample()["priority_weight"].dtype == torch.float64


def test_eps_is_added_before_the_exponent():
    made = buffer(alpha=2.0, eps=0.5)
    made.update_priority(torch.tensor([0, 1]), torch.tensor([0.0, 1.5]))
    assert stored(made) == [0.25, 4.0, 2.25, 2.25]


def test_rows_of_priority_zero_are_not_drawn_with_eps_zero():
    made = buffer()
    made.update_priority(torch.tensor([0, 3]), torch.zeros(2))
    assert set(made.sample(200)["x"].tolist()) == {1, 2}


def test_samples_follow_the_seed():
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(buffer(100, 100).sample(20)["x"].tolist())
    assert draws[0] == draws[1] != draws[2]


def test_a_sample_can_be_stored_again():
    made = buffer(8, 4)
    made.extend(made.sample())
    assert len(made) == 8 and set(made[:].keys()) == {"x"}


# ------------------------------------------------------------------------------------------------- updates
def test_priorities_written_by_a_loss_reach_their_rows():
    made = buffer()
    sample = made.sample()
    sample["td_error"] = 10.0 + sample["x"].unsqueeze(-1).float()
    made.update_tensordict_priority(sample)
    assert stored(made) == [10.0, 11.0, 12.0, 13.0]


def test_a_row_that_was_overwritten_keeps_its_own_priority():
    made = buffer()
    sample = made.sample()
    made.extend(rows(4, 2))
    sample["td_error"] = 10.0 + sample["x"].float()
    made.update_tensordict_priority(sample)
    assert stored(made) == [1.0, 1.0, 12.0, 13.0]


def test_without_generations_an_update_reaches_whatever_is_there():
    made = buffer()
    sample = made.sample().exclude("index_generation")
    made.extend(rows(4, 2))
    sample["td_error"] = torch.full((4,), 7.0)
    made.update_tensordict_priority(sample)
    assert stored(made) == [7.0] * 4


def test_a_batch_from_before_empty_changes_nothing():
    made = buffer()
    sample = made.sample()
    sample["td_error"] = torch.full((4,), 7.0)
    made.empty()
    made.update_tensordict_priority(sample)
    made.extend(rows(0, 4))
    made.update_tensordict_priority(sample)
    assert stored(made) == [1.0] * 4


def test_rows_overwritten_in_place_start_with_the_default_and_drop_older_updates():
    made = buffer()
    made.update_priority(torch.arange(4), torch.tensor([5.0, 2.0, 3.0, 1.0]))
    sample = made.sample()
    made[[0, 1]] = rows(7, 2)
    assert stored(made) == [3.0, 3.0, 3.0, 1.0]
    made.update_priority(sample["index"], torch.full((4,), 8.0), sample["index_generation"])
    assert stored(made)[:2] == [3.0, 3.0]


def test_priorities_in_written_data_are_used():
    made = TensorDictPrioritizedReplayBuffer(alpha=0.5, beta=1.0, eps=0.0, storage=LazyTensorStorage(8))
    data = rows(0, 3).set("td_error", torch.tensor([4.0, 9.0, 16.0]))
    made.extend(data)
    made.extend(data, update_priority=False)
    assert stored(made) == [2.0, 3.0, 4.0, 4.0, 4.0, 4.0]


def test_another_entry_can_hold_the_priorities():
    made = buffer(priority_key=("agent", "error"))
    sample = made.sample()
    sample["agent", "error"] = torch.full((4,), 3.0)
    made.update_tensordict_priority(sample)
    assert stored(made) == [3.0] * 4
    with pytest.raises(KeyMissingError, match=r"\('agent', 'error'\)"):
        made.update_tensordict_priority(made.sample())


@pytest.mark.parametrize(("reduction", "expected"), [("max", 6.0), ("min", 1.0), ("mean", 3.0), ("median", 2.0)])
def test_several_priorities_of_a_row_become_one(reduction, expected):
    made = buffer(reduction=reduction)
    made.update_priority(torch.tensor([2]), torch.tensor([[[1.0], [2.0], [6.0]]]))
    assert stored(made) == [1.0, 1.0, expected, 1.0]


def test_whole_numbers_are_priorities_too():
    made = buffer(reduction="mean")
    made.update_priority(torch.tensor([2]), torch.tensor([[1, 2]]))
    assert stored(made) == [1.0, 1.0, 1.5, 1.0]


def test_one_number_for_all_and_single_slots_are_taken():
    made = buffer()
    made.update_priority([0, 2], 3.0)
    made.update_priority(-1, 5)
    assert stored(made) == [3.0, 1.0, 3.0, 5.0]


def test_a_priority_that_is_not_finite_is_refused():
    made = buffer()
    sample = made.sample()
    sample["td_error"] = torch.tensor([1.0, math.nan, 1.0, 1.0])
    with pytest.raises(ReplayBufferError, match=r"priority nan \(position 1"):
        made.update_tensordict_priority(sample)


def test_a_slot_that_holds_no_row_is_refused():
    with pytest.raises(ReplayBufferError, match=r"slot 3 \(position 0 of the index\) holds no row: filled are 0 to 2"):
        buffer(8, 3).update_priority(torch.tensor([3]), torch.tensor([1.0]))


def test_priorities_that_need_a_gradient_are_taken():
    made = buffer()
    made.update_priority(torch.arange(4), torch.full((4, 1), 2.0, requires_grad=True))
    assert stored(made) == [2.0] * 4


# ------------------------------------------------------------------------------------------------- storages
def test_lanes_have_priorities_by_step_and_lane():
    made = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(20, ndim=2), batch_size=21
    )
    data = TensorDict({"x": torch.arange(21).reshape(3, 7)}, [3, 7])
    made.extend(data)  # the capacity is rounded up to 7 steps of 3 lanes
    assert len(made) == 21
    sample = made.sample()
    assert sorted(sample["x"].tolist()) == list(range(21)) and sample["index"].shape == (21, 2)
    sample["td_error"] = (sample["x"] == 9).float()
    made.update_tensordict_priority(sample)
    again = made.sample()
    assert again["x"].tolist() == [9] * 21 and again["index"].tolist() == [[2, 1]] * 21
    made.extend(data[:, :3])  # overwrites the row
    made.update_tensordict_priority(sample)
    assert sorted(stored(made)) == [0.0] * 12 + [1.0] * 9


def test_whole_sequences_have_one_priority_each():
    made = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(5), dim_extend=0, batch_size=3
    )
    made.extend(TensorDict({"x": torch.arange(12).reshape(3, 4)}, [3, 4]))
    sample = made.sample()
    assert sample["priority_weight"].shape == sample["index_generation"].shape == (3, 4)
    sample["td_error"] = sample["x"].float()
    made.update_tensordict_priority(sample)
    assert stored(made) == [3.0, 7.0, 11.0]
    made.extend(TensorDict({"x": torch.zeros(4, 4, dtype=torch.int64)}, [4, 4]))  # slots 3, 4, 0, 1
    sample["td_error"] = torch.full((3, 4), 2.0)
    made.update_tensordict_priority(sample)
    assert stored(made) == [11.0, 11.0, 2.0, 11.0, 11.0]


def test_a_list_without_a_limit_can_be_prioritised():
    made = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=ListStorage(), batch_size=3)
    made.extend([{"a": torch.tensor(k)} for k in range(5)])
    made.update_priority(torch.arange(4), torch.full((4,), 1e-6))
    assert made.sample()["a"].tolist() == [4, 4, 4]


def test_a_sampler_set_later_learns_of_the_rows():
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(5), batch_size=3)
    made.extend(rows(0, 3))
    made.set_sampler(PrioritizedSampler(2, alpha=1.0, beta=1.0))
    assert sorted(made.sample()["x"].tolist()) == [0, 1, 2]


def test_an_unknown_reduction_and_exponents_out_of_range_are_refused():
    with pytest.raises(ReplayBufferError, match=r"one of max, min, mean, median, got 'sum'"):
        PrioritizedSampler(4, 1.0, 1.0, reduction="sum")
    with pytest.raises(ReplayBufferError, match=r"a floating-point one; got torch\.int64"):
        PrioritizedSampler(4, 1.0, 1.0, dtype=torch.int64)
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(ReplayBufferError, match="alpha must be a finite number >= 0"):
            PrioritizedSampler(4, bad, 1.0)
    with pytest.raises(ReplayBufferError, match="beta must be a finite number >= 0"):
        PrioritizedSampler(4, 1.0, 1.0).beta = -1.0


# ------------------------------------------------------------------------------------------------- saving
@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_saved_loaded_and_saved_again_it_goes_on_as_it_was(storage, tmp_path):
    def made():
        return TensorDictPrioritizedReplayBuffer(
            alpha=0.7, beta=0.5, storage=storage(8), batch_size=3, generator=torch.Generator().manual_seed(0)
        )

    first, second, third = made(), made(), made()
    first.extend(rows(0, 6))
    first.update_priority(torch.arange(6), torch.arange(1.0, 7.0))
    first.extend(rows(6, 4))
    sample = first.sample()
    first.sampler.beta = 0.8
    first.dumps(tmp_path / "one")
    second.loads(tmp_path / "one")
    second.dumps(tmp_path / "two")
    third.loads(tmp_path / "two")
    drawn = []
    for subject in (first, second, third):
        subject.update_priority(sample["index"], torch.full((3,), 2.0), sample["index_generation"])
        subject.extend(rows(10, 1))
        batches = [subject.sample() for _ in range(5)]
        drawn.append(
            [(b["x"].tolist(), b["priority_weight"].tolist(), b["index_generation"].tolist()) for b in batches]
        )
        assert len(subject) == 8 and subject.sampler.beta == 0.8 and subject.writer.cursor == 3
    assert drawn[0] == drawn[1] == drawn[2]


def test_copies_are_buffers_of_their_own():
    made = buffer()
    other = copy.deepcopy(made)
    other.update_priority(torch.tensor([0]), torch.tensor([9.0]))
    assert stored(made) == [1.0] * 4 and stored(other) == [9.0, 1.0, 1.0, 1.0]


def test_the_registry_offers_sampler_and_buffers():
    assert samplers.get("prioritized") is PrioritizedSampler
    assert buffers.get("prioritized_replay") is PrioritizedReplayBuffer
    assert buffers.get("tensordict_prioritized_replay") is TensorDictPrioritizedReplayBuffer


def test_other_buffers_have_no_generations():
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
    plain.extend(rows(0, 4).set("priority_weight", torch.ones(4)))
    assert set(plain.sample().keys()) == {"x", "index", "priority_weight"}
    assert isinstance(plain, ReplayBuffer)
