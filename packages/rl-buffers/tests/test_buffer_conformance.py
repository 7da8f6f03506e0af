"""Every part of this package passes the core's kits, with the C++ kernels and with their torch twins."""

from __future__ import annotations

import pytest
import torch

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    native,
)
from rl_core.buffers import ReplayBuffer as BufferContract
from rl_core.testing import BufferKit, SamplerKit, StorageKit, WriterKit


@pytest.fixture(autouse=True, params=["native", "twin"])
def kernels(request, monkeypatch):
    """Each check runs with both implementations; without a compiler both are the twin."""
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


class TestLazyTensorStorage(StorageKit):
    def make(self, max_size):
        return LazyTensorStorage(max_size)


class TestListStorage(StorageKit):
    fixes_structure = False

    def make(self, max_size):
        return ListStorage(max_size)


class TestRandomSampler(SamplerKit):
    def make(self):
        return RandomSampler()


class TestSamplerWithoutReplacement(SamplerKit):
    without_replacement = True

    def make(self):
        return SamplerWithoutReplacement()


class TestSamplerWithoutReplacementInOrder(SamplerKit):
    without_replacement = True
    deterministic = True

    def make(self):
        return SamplerWithoutReplacement(shuffle=False)


class TestRoundRobinWriter(WriterKit):
    def make(self):
        return RoundRobinWriter()


class TestTensorDictRoundRobinWriter(WriterKit):
    def make(self):
        return TensorDictRoundRobinWriter()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class TestReplayBuffer(BufferKit):
    def make(self, max_size, batch_size):
        buffer = ReplayBuffer(storage=LazyTensorStorage(max_size), batch_size=batch_size, generator=seeded())
        assert isinstance(buffer, BufferContract)
        return buffer


class TestReplayBufferOfAList(BufferKit):
    fixes_structure = False

    def make(self, max_size, batch_size):
        return ReplayBuffer(storage=ListStorage(max_size), batch_size=batch_size, generator=seeded())


class TestTensorDictReplayBuffer(BufferKit):
    def make(self, max_size, batch_size):
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(max_size),
            sampler=SamplerWithoutReplacement(),
            batch_size=batch_size,
            generator=seeded(),
        )
