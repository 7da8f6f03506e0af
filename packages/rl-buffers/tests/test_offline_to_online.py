"""OfflineToOnlineReplayBuffer and prefilling: fractions, annealing, and a save without the dataset's rows."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    OfflineToOnlineReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
    prefill_replay_buffer,
)
from rl_core.buffers import ReplayBuffer as BufferContract
from rl_core.errors import CheckpointError, ReplayBufferError


def rows(start: int, n: int) -> TensorDict:
    return TensorDict({"x": torch.arange(start, start + n)}, [n])


def make(offline=None, **kwargs) -> OfflineToOnlineReplayBuffer:
    arguments = {"online_capacity": 50, "batch_size": 10, "generator": torch.Generator().manual_seed(0)}
    return OfflineToOnlineReplayBuffer(rows(0, 40) if offline is None else offline, **{**arguments, **kwargs})


def test_a_batch_has_its_fraction_of_the_dataset():
    buffer = make(offline_fraction=0.3)
    assert isinstance(buffer, BufferContract)
    assert (buffer.sample()["x"] < 40).all()  # nothing else is there
    buffer.extend(rows(1000, 5))
    for _ in range(5):
        batch = buffer.sample()
        assert batch.batch_size == (10,) and int((batch["x"] < 40).sum()) == 3
        which, slot = batch["index"].unbind(-1)
        assert torch.equal(which * 1000 + slot, batch["x"])
    buffer.offline_fraction = 1.0
    assert (buffer.sample()["x"] < 40).all()


def test_the_fraction_goes_down_to_nothing():
    buffer = make(offline_fraction=0.8)
    buffer.extend(rows(1000, 5))
    assert [buffer.anneal(step, 100) for step in (0, 50, 100, 200)] == [0.8, 0.4, 0.0, 0.0]
    assert (buffer.sample()["x"] >= 1000).all()


def test_writes_priorities_and_emptying_are_about_the_new_rows():
    buffer = make(online_sampler=PrioritizedSampler(50, alpha=1.0, beta=1.0, eps=0.0), offline_fraction=0.5)
    assert buffer.extend(rows(1000, 4)).tolist() == [0, 1, 2, 3] and buffer.add(rows(1004, 1)[0]) == 4
    batch = buffer.sample()
    assert bool((batch["priority_weight"][:5] == 1).all())
    buffer.update_priority(torch.tensor([[1, k] for k in range(5)]), torch.eye(5)[2])
    batch = buffer.sample()
    assert set(batch["x"][5:].tolist()) == {1002}
    batch["td_error"] = torch.zeros(10)
    batch["td_error"][5:] = 3.0
    buffer.update_tensordict_priority(batch)
    buffer.extend(batch.exclude("td_error", "priority_weight", "index_generation"))  # a sample can be stored again
    buffer.empty()
    assert len(buffer.online) == 0 and len(buffer.offline) == 40


def test_a_transform_acts_on_samples_and_its_inverse_on_writes():
    buffer = make(transform=lambda td: td.set("y", td["x"] + 1), offline_fraction=0.5)
    buffer.extend(rows(1000, 3))
    batch = buffer.sample()
    assert torch.equal(batch["y"], batch["x"] + 1) and set(buffer.online[:].keys()) == {"x"}


def test_a_loaded_one_goes_on_as_the_saved_one_and_the_dataset_is_not_copied(tmp_path):
    def dataset() -> TensorDictReplayBuffer:
        data = TensorDict({"x": torch.arange(100_000)}, [100_000])
        return TensorDictReplayBuffer(
            storage=TensorStorage(data), sampler=SamplerWithoutReplacement(), batch_size=5, prefetch=2
        )

    buffer, loaded = make(dataset()), make(dataset(), generator=torch.Generator().manual_seed(9))
    buffer.extend(rows(1000, 30))
    buffer.sample()
    buffer.anneal(1, 10)
    buffer.dumps(tmp_path / "saved")
    sampler_size = 8 * 100_000  # the order of the dataset's rows
    assert (tmp_path / "saved" / "tensors.bin").stat().st_size < sampler_size + 50_000
    loaded.loads(tmp_path / "saved")
    assert loaded.offline_fraction == 0.45
    for _ in range(5):
        assert torch.equal(buffer.sample()["x"], loaded.sample()["x"])
    with pytest.raises(CheckpointError, match="of a dataset with 100000 rows, this one has 40"):
        make().load_state_dict(buffer.state_dict())


def test_what_does_not_fit_together_is_named():
    buffer = make()
    buffer.extend(TensorDict({"x": torch.arange(3), "extra": torch.arange(3)}, [3]))
    with pytest.raises(ReplayBufferError, match="only the new rows \\['extra'\\]"):
        buffer.sample()
    with pytest.raises(ReplayBufferError, match="either online_storage or online_capacity"):
        make(online_storage=LazyTensorStorage(3))
    with pytest.raises(ReplayBufferError, match=r"offline_fraction is in \[0, 1\], got 1.5"):
        make(offline_fraction=1.5)
    with pytest.raises(ReplayBufferError, match="a replay buffer or a TensorDict of rows, got list"):
        make([1, 2])
    with pytest.raises(ReplayBufferError, match="step >= 0 and total >= 1"):
        buffer.anneal(1, 0)


@pytest.mark.parametrize("source", ["tensordict", "buffer", "pieces"])
def test_a_buffer_is_filled_before_training(source):
    data = rows(0, 25)
    if source == "buffer":
        other = ReplayBuffer(storage=LazyTensorStorage(100))
        other.extend(data)
        given = other
    else:
        given = data if source == "tensordict" else data.split(4)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    assert prefill_replay_buffer(buffer, given, 10, chunk_size=7) == 10
    assert buffer[:]["x"].tolist() == list(range(10))
    whole = ReplayBuffer(storage=LazyTensorStorage(100))
    assert prefill_replay_buffer(whole, given) == 25
    with pytest.raises(ReplayBufferError, match="30 rows were asked for, there are 25"):
        prefill_replay_buffer(whole, given, 30)
