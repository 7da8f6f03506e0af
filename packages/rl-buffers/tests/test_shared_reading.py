"""Samples of a shared buffer that are drawn while others write: whole rows, without waiting for the lock."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, RandomSampler, ReplayBuffer, native
from rl_buffers.sharing import ProcessLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file locks")
FORK = multiprocessing.get_context("fork") if sys.platform != "win32" else multiprocessing.get_context()


def rows(start: int, n: int, width: int = 2) -> TensorDict:
    """Row k holds k in many places, so that half a row is seen."""
    k = torch.arange(start, start + n)
    return TensorDict({"x": k.unsqueeze(-1).expand(n, width).float(), "k": k}, [n])


def whole(batch: TensorDict) -> bool:
    return bool((batch["x"] == batch["k"].unsqueeze(-1)).all())


def shared(capacity: int, filled: int, batch: int = 8) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=batch, shared=True)
    buffer.extend(rows(0, filled))
    return buffer


def look(buffer: ReplayBuffer):
    assert buffer._sharing is not None and isinstance(buffer._lock, ProcessLock)
    return buffer._sharing.look(buffer._lock)


def unchanged(buffer: ReplayBuffer, seen, *slots: int) -> bool:
    assert buffer._sharing is not None
    return buffer._sharing.unchanged(seen, torch.tensor(slots), buffer.storage)


@settings(max_examples=60, deadline=None)
@given(capacity=st.integers(1, 9), before=st.lists(st.integers(1, 12), min_size=1, max_size=3), n=st.integers(0, 12))
def test_exactly_the_rows_written_since_the_look_count_as_touched(capacity, before, n):
    buffer = shared(capacity, before[0])
    for size in before[1:]:
        buffer.extend(rows(0, size))
    seen, count = look(buffer), buffer.write_count
    if n:
        buffer.extend(rows(0, n))
    touched = {k % capacity for k in range(count, count + n)} if n < capacity else set(range(capacity))
    for slot in range(capacity):
        assert unchanged(buffer, seen, slot) == (slot not in touched)
    assert unchanged(buffer, seen, *range(capacity)) == (not touched)


def test_rows_of_a_write_that_is_under_way_count_as_touched():
    buffer = shared(10, 10)
    writer = buffer.writer
    spans = writer.extend(3, buffer.storage)  # claimed, not yet copied
    assert [(span.start, span.stop) for span in spans] == [(0, 3)]
    seen = look(buffer)
    assert [unchanged(buffer, seen, slot) for slot in (0, 2, 3, 9)] == [False, False, True, True]
    buffer.extend(rows(50, 1))
    assert [unchanged(buffer, look(buffer), slot) for slot in (0, 2, 3, 9)] == [True] * 4


@pytest.mark.parametrize("change", ["set", "empty", "load"])
def test_any_other_change_makes_a_look_worthless(change):
    buffer = shared(10, 10)
    state = buffer.state_dict()
    seen = look(buffer)
    assert unchanged(buffer, seen, 9)
    if change == "set":
        buffer[0] = rows(3, 1)[0]
    elif change == "empty":
        buffer.empty()
        buffer.extend(rows(0, 10))
    else:
        buffer.load_state_dict(state)
    assert not unchanged(buffer, seen, 9) and unchanged(buffer, look(buffer), 9)
    assert buffer._sharing is not None
    with buffer._lock, buffer._sharing.changing():
        assert look(buffer) is None  # while it lasts


@pytest.mark.parametrize("change", ["extend", "set", "nothing"])
def test_a_row_that_changes_while_it_is_read_is_read_again(monkeypatch, change):
    buffer = shared(8, 8, batch=64)
    other = pickle.loads(pickle.dumps(buffer))
    get, calls = buffer.storage.get, []

    def interrupted(index):
        """Half of the entries before a change by another process, half after it."""
        calls.append(index)
        first = get(index)
        if len(calls) > 1:
            return first
        if change == "extend":
            other.extend(rows(100, 4))
        elif change == "set":
            other[2] = rows(200, 1)[0]
        return first.set("k", get(index)["k"])

    monkeypatch.setattr(buffer.storage, "get", interrupted)
    batch = buffer.sample()
    assert whole(batch)
    expected = {"extend": {*range(100, 104), *range(4, 8)}, "set": {0, 1, 200, 3, 4, 5, 6, 7}, "nothing": set(range(8))}
    assert set(batch["k"].tolist()) == expected[change]
    kernels = native.native_state() == "native"
    assert len(calls) == (2 if change != "nothing" and kernels else 1)
    assert buffer.stats()["samples"] == 64


def test_a_sample_does_not_wait_for_a_write(monkeypatch):
    if native.native_state() != "native":
        return  # without the kernels every sample takes the lock
    buffer = shared(10, 10)
    begun, finish, batches = threading.Event(), threading.Event(), []
    write = buffer.storage.write

    def slow(block, spans):
        begun.set()
        assert finish.wait(60)
        write(block, spans)

    monkeypatch.setattr(buffer.storage, "write", slow)
    writer = threading.Thread(target=buffer.extend, args=(rows(100, 2),))
    reader = threading.Thread(target=lambda: [batches.append(buffer.sample(1)) for _ in range(20)])
    writer.start()
    assert begun.wait(60)
    reader.start()
    while not batches:
        reader.join(0.01)
    finish.set()
    reader.join(60)
    writer.join(60)
    assert batches and all(whole(batch) for batch in batches) and whole(buffer[:])


def test_samplers_that_know_rows_take_the_lock():
    class Own(RandomSampler):
        """Another sampler."""

    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=Own(), batch_size=2, shared=True)
    buffer.extend(rows(0, 4))
    assert buffer._sharing is not None
    assert buffer._glimpse(buffer._sharing, 2) is None and len(buffer.sample()) == 2


def test_whether_a_lock_is_free(tmp_path):
    told: list[int] = []
    lock, other = ProcessLock(tmp_path / "lock", lambda: told.append(1)), ProcessLock(tmp_path / "lock")
    with other:
        pass
    assert lock.is_free() and lock.is_free() and len(told) == 2
    with other:
        with FORK.Pool(1) as pool:  # a process that holds nothing
            assert pool.apply(int) == 0
        threaded: list[bool] = []
        thread = threading.Thread(target=lambda: threaded.append(lock.is_free()))
        thread.start()
        thread.join(60)
        assert threaded == [False] and len(told) == 2
    assert lock.is_free()


def overwrite(buffer: ReplayBuffer, writes: int) -> None:
    for i in range(writes):
        buffer.extend(rows(1000 * i, 40, 2000))


def test_no_half_row_is_read_while_a_process_overwrites_large_rows():
    buffer = ReplayBuffer(storage=LazyTensorStorage(400), batch_size=4, shared=True)
    buffer.extend(rows(0, 400, 2000))
    process = FORK.Process(target=overwrite, args=(buffer, 1000))
    process.start()
    looks = 0
    while process.is_alive():
        for _ in range(20):
            assert whole(buffer.sample()), "half a row was read"
            looks += 1
    process.join(60)
    assert process.exitcode == 0 and looks > 20 and whole(buffer[:])
