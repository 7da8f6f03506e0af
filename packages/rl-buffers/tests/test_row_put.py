"""A single row stored the quick way: the same as the careful way for plain rows, and refused for all others."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    native,
)
from rl_core.errors import ReplayBufferError
from rl_core.transforms import Transform

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]


@pytest.fixture(params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield request.param
    native.load.cache_clear()


def row(k: float) -> TensorDict:
    return TensorDict({"x": torch.tensor([k, k + 0.5]), "next": {"reward": torch.tensor([10.0 * k])}})


def puts(storage: LazyTensorStorage, data) -> bool:
    """Whether the row after the filled ones is taken the quick way."""
    return storage.put(data, len(storage))


def filled(n: int = 2, size: int = 4) -> LazyTensorStorage:
    storage = LazyTensorStorage(size)
    buffer = ReplayBuffer(storage=storage)
    for k in range(n):
        buffer.add(row(k))
    return storage


def has_kernels() -> bool:
    return native.native_state() == "native"


specs = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(specs=specs, capacity=st.integers(1, 4), n=st.integers(1, 9), seed=st.integers(0, 99), nested=st.booleans())
def test_rows_added_one_by_one_equal_rows_set_by_hand(specs, capacity, n, seed, nested):
    generator = torch.Generator().manual_seed(seed)
    names = [("next", str(i)) if nested and i % 2 else (str(i),) for i in range(len(specs))]
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity))
    wanted = [torch.zeros(capacity, *shape, dtype=dtype) for dtype, shape in specs]
    for k in range(n):
        data = TensorDict({}, [])
        for name, (dtype, shape), ring in zip(names, specs, wanted, strict=True):
            value = torch.randint(0, 100, shape, generator=generator).to(dtype)
            data[name] = value
            ring[k % capacity] = value
        assert buffer.add(data) == k % capacity
    assert len(buffer) == min(n, capacity) and buffer.write_count == n
    for name, ring in zip(names, wanted, strict=True):
        assert torch.equal(buffer[name], ring[: len(buffer)])


def test_plain_rows_take_the_quick_way():
    storage = filled()
    assert puts(storage, row(7)) is has_kernels()
    if has_kernels():
        assert storage.get(torch.tensor([2]))["next", "reward"].item() == 70


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": torch.zeros(2)},
        {"x": torch.zeros(2), "next": {"reward": torch.zeros(1)}, "z": torch.zeros(1)},
        {"x": torch.zeros(2), "next": {"reward": torch.zeros(1), "z": torch.zeros(1)}},
        {"y": torch.zeros(2), "next": {"reward": torch.zeros(1)}},
        {"x": torch.zeros(2, dtype=torch.float64), "next": {"reward": torch.zeros(1)}},
        {"x": torch.zeros(2, dtype=torch.int32), "next": {"reward": torch.zeros(1)}},
        {"x": torch.zeros(3), "next": {"reward": torch.zeros(1)}},
        {"x": torch.zeros(1, 2), "next": {"reward": torch.zeros(1)}},
        {"x": torch.zeros(2), "next": torch.zeros(1)},
        {"x": {"reward": torch.zeros(2)}, "next": {"reward": torch.zeros(1)}},
        {"x": torch.zeros(2), "next": {"reward": torch.tensor(0.0)}},
    ],
)
def test_a_row_of_another_structure_is_refused_with_its_entry_and_nothing_changes(kernels, wrong):
    storage = filled(3, 3)
    buffer = ReplayBuffer(storage=storage)
    buffer.set_storage(storage)
    before = copy.deepcopy(buffer[:])
    assert not storage.put(TensorDict(wrong), 0)
    with pytest.raises(ReplayBufferError, match=r"'x'|'y'|'z'|reward|next"):
        buffer.add(TensorDict(wrong))
    assert (buffer[:] == before).all() and buffer.write_count == 3


def test_what_is_not_plain_is_left_to_the_careful_way():
    storage = filled()
    double = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    sign = torch.tensor([3.0 + 4.0j]).conj().imag  # its memory holds +4
    strided = row(5).set("x", double[:, 0])
    negative = TensorDict({"x": torch.zeros(2), "next": {"reward": sign}})
    parameter = TensorDict({"x": torch.nn.Parameter(torch.zeros(2)), "next": {"reward": torch.zeros(1)}})
    refused = [strided, negative, parameter, torch.zeros(2), row(1).unsqueeze(0), {"x": torch.zeros(2)}]
    assert not any(puts(storage, data) for data in refused)
    assert len(storage) == 2
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    for data in (row(0), strided, negative, parameter):
        buffer.add(data)
    assert buffer["x"].tolist() == [[0, 0.5], [1, 3], [0, 0], [0, 0]]
    assert buffer["next", "reward"].flatten().tolist() == [0, 50, -4, 0]


def test_tensors_without_memory_on_the_cpu_are_refused():
    storage = filled()
    for leaf in (torch.empty(2, device="meta"), torch.zeros(2).to_sparse()):
        data = TensorDict({"next": {"reward": torch.zeros(1)}})
        data._tensordict["x"] = leaf  # a set would ask for a device
        assert not puts(storage, data)
    assert len(storage) == 2


def test_entries_in_another_order_are_told_apart_by_name(kernels):
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.add(TensorDict({"a": torch.tensor(1.0), "b": torch.tensor(2.0), "n": {"c": torch.tensor(3.0)}}))
    buffer.add(TensorDict({"b": torch.tensor(5.0), "a": torch.tensor(4.0), "n": {"c": torch.tensor(6.0)}}))
    assert [buffer[name].tolist() for name in ("a", "b", ("n", "c"))] == [[1, 4], [2, 5], [3, 6]]


def test_a_row_with_gradients_is_stored_without_them():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    for k in range(2):
        buffer.add(TensorDict({"x": torch.full((2,), float(k), requires_grad=True) * 1}))
    assert buffer["x"].tolist() == [[0, 0], [1, 1]] and not buffer["x"].requires_grad


def test_an_empty_container_and_an_entry_without_numbers_are_stored():
    data = TensorDict({"x": torch.zeros(0, 3), "n": TensorDict({}), "y": torch.tensor(True)})
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    assert [buffer.add(data) for _ in range(3)] == [0, 1, 2]
    assert buffer[:]["x"].shape == (3, 0, 3) and buffer["y"].all()


def test_the_index_that_a_sample_carries_is_not_stored(kernels):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=1)
    buffer.add(row(3))
    again = buffer.sample()[0]
    assert "index" in again and buffer.add(again) == 1
    assert "index" not in buffer[:] and buffer["x"].tolist() == [[3, 3.5], [3, 3.5]]


def test_everything_that_learns_of_writes_learns_of_a_single_row(kernels):
    limiter = RateLimiter(min_size=1)
    sampler = PrioritizedSampler(4, alpha=1.0, beta=1.0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, rate_limiter=limiter, batch_size=8)
    table = buffer.episodes()
    for k in range(6):
        data = row(k)
        data["next", "done"] = torch.tensor([k % 2 == 1])
        assert buffer.add(data) == k % 4
    assert table.lengths().tolist() == [2, 2]
    assert buffer.write_count == limiter.inserted == 6
    buffer.update_priority([2], 0.0)  # the oldest row
    assert 2.0 not in buffer.sample(64)["x"][:, 0].tolist()
    data = row(9)
    data["next", "done"] = torch.tensor([True])
    assert buffer.add(data) == 2
    assert 9.0 in buffer.sample(64)["x"][:, 0].tolist()  # it is as likely as the likeliest


def test_slices_are_drawn_from_rows_added_one_by_one(kernels):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), sampler=SliceSampler(slice_len=2), batch_size=4)
    for k in range(9):
        data = row(k)
        data["next", "done"] = torch.tensor([k == 5])
        buffer.add(data)
    steps = buffer.sample(64)["x"][:, 0].reshape(-1, 2)
    assert bool((steps.diff() == 1).all()) and not bool((steps[:, 0] == 5).any())


class Twice(Transform):
    """Doubles what is stored."""

    def inv(self, tensordict):
        return tensordict.clone().set("x", 2 * tensordict["x"])


def test_parts_that_come_later_are_heeded(kernels):
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.add(row(0))
    buffer.add(row(1))
    buffer.append_transform(Twice())
    buffer.add(row(2))
    assert buffer._lock is not None and len(buffer) == 3
    assert buffer[2].get("x").tolist() != [2, 2.5]
    other = ReplayBuffer(storage=LazyTensorStorage(4))
    other.add(row(0))
    other.add(row(1))
    other.set_storage(LazyTensorStorage(2))
    assert [other.add(row(k)) for k in (2, 3, 4)] == [0, 1, 0]
    assert other["x"][:, 0].tolist() == [4, 3]
    largest = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter(rank_key=("next", "reward")))
    assert [largest.add(row(k)) for k in (5, 1, 3, 0)] == [0, 1, 1, None]


def test_a_copy_writes_to_its_own_rows(kernels):
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    for k in range(3):
        buffer.add(row(k))
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert other.add(row(8)) == 3 and len(other) == 4
        assert len(buffer) == 3 and buffer["x"][:, 0].tolist() == [0, 1, 2]


def test_the_default_storage_warns_where_its_caller_stands():
    buffer = ReplayBuffer()
    buffer.extend(list(range(1000)))
    with pytest.warns(UserWarning, match="overwrites the oldest") as warned:
        buffer.add(1)
    assert warned[0].filename == __file__
