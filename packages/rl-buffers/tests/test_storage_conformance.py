"""The storages and writers that are not the default ones pass the core's kits, and so do buffers made of them."""

from __future__ import annotations

import pickle

import pytest
import torch

from rl_buffers import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TrajectoryStorage,
    native,
)
from rl_core.testing import BufferKit, StorageKit, WriterKit
from rl_core.testing.kit import overrides_check


@pytest.fixture(autouse=True, params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


class MappedKit(StorageKit):
    """A pickled storage with files is their path."""

    @overrides_check(reason="the pickled storage names the files, which go with the storage that made them")
    def test_it_can_be_pickled(self):
        storage = self._filled(3)
        assert self._numbers(pickle.loads(pickle.dumps(storage))) == [0, 1, 2]


class TestLazyMemmapStorage(MappedKit):
    def make(self, max_size):
        return LazyMemmapStorage(max_size)


class TestSharedLazyTensorStorage(MappedKit):
    def make(self, max_size):
        return LazyTensorStorage(max_size, shared=True)


class TestTrajectoryStorage(StorageKit):
    def make(self, max_size):
        return TrajectoryStorage(max_size)


class TestLazyStackStorage(StorageKit):
    fixes_structure = False

    def make(self, max_size):
        return LazyStackStorage(max_size)


class TestCompressedListStorage(StorageKit):
    fixes_structure = False

    def make(self, max_size):
        return CompressedListStorage(max_size)


class TestTensorDictMaxValueWriter(WriterKit):
    keeps_newest = False

    def make(self):
        return TensorDictMaxValueWriter(rank_key=("next", "y"))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class TestBufferOfAMemmap(BufferKit):
    def make(self, max_size, batch_size):
        return TensorDictReplayBuffer(
            storage=LazyMemmapStorage(max_size),
            sampler=SamplerWithoutReplacement(),
            batch_size=batch_size,
            generator=seeded(),
        )


class TestSharedBuffer(BufferKit):
    def make(self, max_size, batch_size):
        return ReplayBuffer(storage=LazyTensorStorage(max_size), batch_size=batch_size, generator=seeded(), shared=True)


class TestBufferOfTrajectories(BufferKit):
    def make(self, max_size, batch_size):
        return ReplayBuffer(storage=TrajectoryStorage(max_size), batch_size=batch_size, generator=seeded())


class TestBufferOfLazyStacks(BufferKit):
    fixes_structure = False

    def make(self, max_size, batch_size):
        return ReplayBuffer(storage=LazyStackStorage(max_size), batch_size=batch_size, generator=seeded())


class TestBufferOfCompressedRows(BufferKit):
    fixes_structure = False

    def make(self, max_size, batch_size):
        return ReplayBuffer(storage=CompressedListStorage(max_size), batch_size=batch_size, generator=seeded())
