"""StalenessAwareSampler: weights 1 / (staleness + 1), the gate, and batches without repetition."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, ListStorage, ReplayBuffer, StalenessAwareSampler, TensorDictReplayBuffer
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.testing import SamplerKit
from rl_core.testing.numbered_rows import CountedSlots


class VersionedSlots(CountedSlots):
    """All rows were written by version 3."""

    def entry(self, key, index):
        return torch.full((index.numel(), 1), 3)


class TestStalenessAwareSampler(SamplerKit):
    def make(self):
        return StalenessAwareSampler()

    def _ready(self, filled, seed=0):
        sampler, _ = super()._ready(filled, seed)
        return sampler, VersionedSlots(filled)


def rows(*versions: int) -> TensorDict:
    return TensorDict({"policy_version": torch.tensor(versions), "x": torch.arange(len(versions))}, [len(versions)])


def buffer_of(data: TensorDict, batch_size: int, storage=LazyTensorStorage, **kwargs) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=storage(max(1000, data.shape[0])),
        sampler=StalenessAwareSampler(**kwargs),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(data)
    return buffer


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_rows_come_with_weight_one_over_staleness_plus_one(storage):
    buffer = buffer_of(rows(5, 4, 3, 1), 1, storage)
    drawn = torch.cat([buffer.sample()["policy_version"].reshape(-1) for _ in range(4000)])
    share = torch.bincount(drawn, minlength=6)[[5, 4, 3, 1]] / 4000
    weights = torch.tensor([1.0, 1 / 2, 1 / 3, 1 / 5])
    assert torch.allclose(share, weights / weights.sum(), atol=0.03)


def test_the_quick_way_over_many_rows_has_the_same_weights():
    versions = torch.arange(6000) % 3
    buffer = buffer_of(TensorDict({"policy_version": versions}, [6000]), 60)
    counts = torch.zeros(3)
    for _ in range(100):
        batch = buffer.sample()
        assert len(batch["index"].unique()) == 60
        counts += torch.bincount(batch["policy_version"], minlength=3)
    weights = torch.tensor([1 / 3, 1 / 2, 1.0])
    assert torch.allclose(counts / counts.sum(), weights / weights.sum(), atol=0.03)


def test_without_repetition_a_batch_of_all_rows_has_all():
    buffer = buffer_of(rows(*range(20)), 20)
    for _ in range(5):
        assert sorted(buffer.sample()["x"].tolist()) == list(range(20))


def test_the_order_of_draws_is_that_of_drawing_one_by_one():
    """First row: in proportion to the weights; P(newest first) = 1 / (1 + 1/2) for two rows."""
    buffer = buffer_of(rows(7, 6), 2)
    first = torch.stack([buffer.sample()["policy_version"][0] for _ in range(3000)])
    assert abs(float((first == 7).float().mean()) - 2 / 3) < 0.03


def test_rows_that_are_too_old_never_come_and_few_fresh_ones_repeat():
    buffer = buffer_of(rows(*[0] * 50, 8, 9), 10, max_staleness=1)
    for _ in range(30):
        batch = buffer.sample()
        assert batch.batch_size == (10,) and set(batch["policy_version"].tolist()) == {8, 9}
        assert torch.equal(batch["staleness"], 9 - batch["policy_version"])


def test_the_learner_says_which_version_is_the_present_one():
    buffer = buffer_of(rows(1, 2, 3), 3, max_staleness=2)
    assert buffer.sampler.version is None
    assert sorted(buffer.sample()["staleness"].tolist()) == [0, 1, 2] and buffer.sampler.version == 3
    buffer.sampler.version = 5
    assert set(buffer.sample()["policy_version"].tolist()) == {3}
    buffer.sampler.version = 2  # rows of a newer version are fresh
    assert sorted(buffer.sample()["staleness"].tolist()) == [0, 0, 1]
    buffer.sampler.version = 9
    with pytest.raises(ReplayBufferError, match="all 3 rows are too old: the version is 9, the newest row has 3"):
        buffer.sample()


def test_overwritten_and_changed_rows_have_their_new_version():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(2), sampler=StalenessAwareSampler(max_staleness=0), batch_size=1
    )
    buffer.extend(rows(1, 1))
    buffer.sample()
    buffer.extend(rows(2))
    assert {int(buffer.sample()["policy_version"]) for _ in range(20)} == {2}
    buffer[1] = rows(4)[0]
    assert {int(buffer.sample()["index"]) for _ in range(20)} == {1}


def test_a_sample_can_be_stored_again_and_versions_may_have_a_dimension_more():
    data = TensorDict({"policy_version": torch.tensor([[1], [2]])}, [2])
    buffer = buffer_of(data, 2)
    buffer.extend(buffer.sample())
    assert len(buffer) == 4


def test_the_version_survives_a_save(tmp_path):
    buffer, loaded = buffer_of(rows(1, 2, 3), 2), buffer_of(rows(0), 2)
    buffer.sampler.version = 6
    buffer.dumps(tmp_path / "saved")
    loaded.loads(tmp_path / "saved")
    assert loaded.sampler.version == 6
    assert [loaded.sample()["x"].tolist() for _ in range(5)] == [buffer.sample()["x"].tolist() for _ in range(5)]


def test_rows_without_a_version_and_bad_limits_are_named():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=StalenessAwareSampler(version_key="v"), batch_size=1)
    buffer.extend(rows(1))
    with pytest.raises(KeyMissingError, match="no entry 'v' with the policy's version"):
        buffer.sample()
    with pytest.raises(ReplayBufferError, match="max_staleness must be >= 0"):
        StalenessAwareSampler(max_staleness=-2)
