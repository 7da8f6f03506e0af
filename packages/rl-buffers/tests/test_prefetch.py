"""Prefetch: batches come in a fixed order whatever threads do, all of them, and survive pickles, forks and files."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
import threading

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict

from rl_buffers import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_buffers.batch_state import batch_from_state, batch_state
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.testing import BufferKit, overrides_check


def rows(start: int, n: int) -> TensorDict:
    k = torch.arange(start, start + n)
    return TensorDict({"x": k, "wide": k.unsqueeze(-1).expand(n, 200).float()}, [n])


def make(prefetch: int | None, sampler=None, size=100, batch_size=4, storage=LazyTensorStorage, **kwargs):
    return TensorDictReplayBuffer(
        storage=storage(size),
        sampler=RandomSampler() if sampler is None else sampler,
        batch_size=batch_size,
        prefetch=prefetch,
        generator=torch.Generator().manual_seed(3),
        **kwargs,
    )


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("rl-prefetch")]


class TestPrefetchingBuffer(BufferKit):
    def make(self, max_size, batch_size):
        return make(2, size=max_size, batch_size=batch_size)

    @overrides_check(reason="batches that are ready do not know of the last write; the loaded buffers are tested below")
    def test_saved_loaded_saved_and_loaded_it_samples_the_same(self):
        pass


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_without_writes_prefetch_changes_nothing(depth):
    plain, ahead = make(None), make(depth)
    for buffer in (plain, ahead):
        buffer.extend(rows(0, 50))
    for _ in range(20):
        assert torch.equal(plain.sample()["x"], ahead.sample()["x"])


def test_as_many_batches_as_asked_for_are_ready():
    buffer = make(3)
    buffer.extend(rows(0, 50))
    assert buffer.stats()["prefetch"] == 0
    buffer.sample()
    buffer.close()  # waits for the threads
    assert buffer.stats()["prefetch"] == 3 and buffer.stats()["batches"] == 4


def test_a_batch_is_drawn_before_what_came_after_its_turn_and_not_earlier():
    """With depth 2, batch k + 2 is drawn when batch k is handed out: writes show two batches later, always."""
    for _ in range(20):
        buffer = make(2, size=1, batch_size=1)
        seen = []
        for k in range(6):
            buffer.add(rows(k, 1)[0])
            seen.append(int(buffer.sample()["x"]))
        assert seen == [0, 0, 0, 1, 2, 3]


def test_priorities_count_from_the_batches_drawn_after_them():
    for _ in range(20):
        buffer = make(2, PrioritizedSampler(10, alpha=1.0, beta=1.0, eps=0.0), size=10, batch_size=1)
        buffer.extend(rows(0, 10))
        only = torch.zeros(10)
        seen = []
        for k in range(6):
            buffer.update_priority(torch.arange(10), only.index_fill(0, torch.tensor([k]), 1.0))
            seen.append(int(buffer.sample()["x"]))
        assert seen == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("depth", [1, 3, 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_batch_of_a_finite_sampler_comes(depth, drop_last):
    buffer, plain = (
        make(depth, SamplerWithoutReplacement(drop_last=drop_last)),
        make(None, SamplerWithoutReplacement(drop_last=drop_last)),
    )
    for each in (buffer, plain):
        each.extend(rows(0, 10))
    for _ in range(4):
        batches, expected = [batch["x"].tolist() for batch in buffer], [batch["x"].tolist() for batch in plain]
        assert batches == expected and [len(batch) for batch in batches] == [4, 4] + [2] * (not drop_last)
    taken = [buffer.next() for _ in range(4 - drop_last)]
    assert taken[-1] is None and all(batch is not None for batch in taken[:-1])
    seen = torch.cat([buffer.sample()["x"] for _ in range(3 - drop_last)])  # a new pass, without iteration
    assert len(seen.unique()) == len(seen) == 10 - 2 * drop_last


def test_an_iteration_that_was_left_is_begun_anew():
    buffer = make(3, SamplerWithoutReplacement())
    buffer.extend(rows(0, 10))
    next(iter(buffer))
    assert sorted(x for batch in buffer for x in batch["x"].tolist()) == list(range(10))


def test_emptying_drops_the_batches_that_are_ready():
    buffer = make(4)
    buffer.extend(rows(0, 50))
    buffer.sample()
    buffer.empty()
    with pytest.raises(ReplayBufferError, match="the storage is empty"):
        buffer.sample()
    buffer.extend(rows(900, 5))
    assert all((buffer.sample()["x"] >= 900).all() for _ in range(6))


def test_other_parts_and_batch_sizes_drop_them_too():
    buffer = make(2)
    buffer.extend(rows(0, 50))
    buffer.sample()
    buffer.append_transform(lambda td: td.set("y", td["x"] + 1))
    assert "y" in buffer.sample()
    buffer.set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert buffer.sample()["x"].tolist() == [0, 1, 2, 3]
    buffer.batch_size = 7
    assert [buffer.sample().numel() for _ in range(4)] == [7] * 4
    assert buffer.sample(2).numel() == 2  # drawn at once


def test_what_a_transform_raises_reaches_the_caller_at_its_turn():
    calls = []

    def fragile(td: TensorDict) -> TensorDict:
        calls.append(None)
        if len(calls) == 3:
            raise ValueError("boom-3")
        return td

    buffer = make(2, transform=fragile)
    buffer.extend(rows(0, 50))
    buffer._prefetcher.depth = 1  # one thread, so that calls are counted in order
    outcomes = []
    for _ in range(6):
        try:
            outcomes.append(buffer.sample().numel())
        except ValueError as error:
            assert str(error) == "boom-3" and error.__traceback__ is not None
            outcomes.append("boom")
    assert outcomes == [4, 4, "boom", 4, 4, 4]


def test_a_draw_that_fails_ahead_of_time_is_tried_again_when_it_is_due():
    class Moody(RandomSampler):
        refuses = False

        def sample(self, storage, batch_size):
            if self.refuses:
                raise ReplayBufferError("not now")
            return super().sample(storage, batch_size)

    buffer = make(2, Moody())
    buffer.extend(rows(0, 50))
    buffer.sample()
    with buffer._lock:
        buffer.sampler.refuses = True
    buffer.sample(), buffer.sample()
    with pytest.raises(ReplayBufferError, match="not now"):
        buffer.sample()
    buffer.sampler.refuses = False
    assert buffer.sample().numel() == 4


@pytest.mark.parametrize("loads_with", [None, 1, 2, 5])
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
@pytest.mark.parametrize("kind", ["prioritized", "without_replacement"])
def test_a_loaded_buffer_goes_on_with_the_batches_that_were_ready(storage, kind, loads_with, tmp_path):
    def new(prefetch):
        sampler = PrioritizedSampler(8, alpha=0.7, beta=0.5) if kind == "prioritized" else SamplerWithoutReplacement()
        return make(prefetch, sampler, size=8, batch_size=3, storage=storage)

    original, first, second = new(2), new(loads_with), new(loads_with)
    for k in range(10):
        original.add(rows(k, 1)[0])
    if kind == "prioritized":
        original.update_priority(torch.arange(8), torch.arange(8.0))
    original.sample()
    original.add(rows(10, 1)[0])  # the batches that are ready do not know of it
    original.dumps(tmp_path / "one")
    first.loads(tmp_path / "one")
    first.dumps(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        file.unlink()
    second.loads(tmp_path / "two")
    expected = [original.sample() for _ in range(5)]
    for loaded in (first, second):
        for batch in expected:
            found = loaded.sample()
            assert set(found.keys()) == set(batch.keys()) and bool((found == batch).all())
        assert loaded.write_count == 11 and loaded.add(rows(99, 1)[0]) == 3
    assert original.add(rows(99, 1)[0]) == 3


def test_a_damaged_batch_leaves_the_buffer_as_it_was():
    buffer = make(2)
    buffer.extend(rows(0, 50))
    buffer.sample()
    state = buffer.state_dict()
    state["prefetched"][0][0].pop("schema")
    loading = make(2)
    loading.extend(rows(70, 5))
    with pytest.raises(CheckpointError, match="its prefetched batches are damaged"):
        loading.load_state_dict(state)
    assert len(loading) == 5


def test_a_batch_of_any_kind_is_taken_apart_and_put_together():
    ragged = LazyStackedTensorDict(*(TensorDict({"x": torch.full((n,), n)}, []) for n in (1, 2)), stack_dim=0)
    td = TensorDict({"a": {"b": torch.ones(2, 3)}, "text": NonTensorStack("one", "two")}, [2])
    for batch in (torch.arange(3), [torch.ones(1), "a"], {"x": (torch.ones(2), 3)}, td, ragged):
        found = batch_from_state(pickle.loads(pickle.dumps(batch_state(batch))))
        assert type(found) is type(batch)
        if batch is td:
            assert found.batch_size == (2,) and found["text"] == ["one", "two"] and bool((found["a", "b"] == 1).all())
        elif batch is ragged:
            assert [part["x"].tolist() for part in found.unbind(0)] == [[1], [2, 2]]


def test_the_buffer_takes_a_generator_of_its_own_that_torch_seeds():
    def draws() -> list[list[int]]:
        torch.manual_seed(11)
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4, prefetch=3)
        buffer.extend(rows(0, 100))
        found = []
        for _ in range(5):
            found.append(buffer.sample()["x"].tolist())
            torch.rand(5)  # the caller draws too, at no fixed time
        return found

    state = torch.get_rng_state()
    try:
        assert draws() == draws()
    finally:
        torch.set_rng_state(state)


def test_a_pickled_buffer_goes_on_as_the_original():
    buffer = make(2, SamplerWithoutReplacement())
    buffer.extend(rows(0, 20))
    buffer.sample()
    copy = pickle.loads(pickle.dumps(buffer))
    for _ in range(7):
        assert torch.equal(buffer.sample()["x"], copy.sample()["x"])


def sample_in_a_process(connection, *buffers) -> None:
    for buffer in buffers:
        connection.send([buffer.sample()["x"].tolist() for _ in range(5)])
    connection.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_go_on_as_the_original(method):
    """Whatever the parts are; and the rows of the original stay where its kernels look for them."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("the platform cannot fork")
    done = (torch.arange(20) % 5 == 4).unsqueeze(-1)
    context = multiprocessing.get_context(method)
    samplers = [PrioritizedSampler(100, alpha=0.5, beta=0.5), SliceSampler(slice_len=2), SamplerWithoutReplacement()]
    buffers = [make(2, sampler) for sampler in samplers]
    for buffer in buffers:
        buffer.extend(rows(0, 20).set("next", TensorDict({"done": done}, [20])))
        buffer.sample()
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=sample_in_a_process, args=(there, *buffers))
    process.start()
    there.close()
    for buffer in buffers:
        assert here.poll(100), "the process gave no batches"
        assert here.recv() == [buffer.sample()["x"].tolist() for _ in range(5)]
        assert buffer[:]["x"].tolist() == list(range(20))
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_forks_amid_the_work_of_the_threads_leave_no_lock_taken():
    buffer = make(4)
    buffer.extend(rows(0, 50))
    context = multiprocessing.get_context("fork")
    for _ in range(8):
        for _ in range(3):
            buffer.sample()
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=sample_in_a_process, args=(there, buffer))
        process.start()
        there.close()
        assert here.poll(60), "the forked process hangs"
        assert len(here.recv()) == 5
        process.join(60)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file locks")
def test_processes_that_share_the_buffer_prefetch_each_for_itself():
    buffer = make(2, size=60)
    buffer.extend(rows(0, 20))
    buffer.sample()
    buffer.share()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=buffer.extend, args=(rows(20, 20),))
    process.start()
    process.join(60)
    assert process.exitcode == 0 and len(buffer) == 40
    seen = torch.cat([buffer.sample()["x"] for _ in range(60)])
    assert int(seen.max()) > 19


def test_no_thread_is_left_after_close_and_after_the_buffer_is_gone():
    before = set(prefetch_threads())
    buffer, other = make(3), make(3)
    for each in (buffer, other):
        each.extend(rows(0, 50))
        each.sample()
    assert set(prefetch_threads()) - before
    buffer.close()
    assert buffer.sample().numel() == 4  # it can be used on
    buffer.close()
    threads = set(prefetch_threads()) - before
    del other, each
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    buffer.close()
    assert set(prefetch_threads()) <= before


def test_threads_sample_while_others_write_and_every_row_is_whole():
    buffer = make(3, PrioritizedSampler(200, alpha=0.6, beta=0.4), size=200, batch_size=16)
    buffer.extend(rows(0, 200))
    failures: list[BaseException] = []

    def run(work) -> None:
        try:
            for i in range(60):
                work(i)
        except BaseException as error:
            failures.append(error)

    def learn(_: int) -> None:
        batch = buffer.sample()
        assert (batch["wide"] == batch["x"].unsqueeze(-1)).all()
        buffer.update_tensordict_priority(batch.set("td_error", torch.rand(16)))

    threads = [
        threading.Thread(target=run, args=(work,))
        for work in (learn, learn, lambda i: buffer.extend(rows(1000 + 7 * i, 7)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    assert not failures, failures


def test_slices_are_prefetched_with_their_marks():
    data = TensorDict({"x": torch.arange(40), "next": {"done": (torch.arange(40) % 10 == 9).unsqueeze(-1)}}, [40])
    plain, ahead = (make(n, SliceSampler(slice_len=4), batch_size=8) for n in (None, 3))
    for buffer in (plain, ahead):
        buffer.extend(data)
    for _ in range(6):
        one, two = plain.sample(), ahead.sample()
        assert bool((one == two).all()) and one["next", "truncated"].any()


def test_tensors_and_information_come_through():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=3, prefetch=2)
    buffer.extend(torch.arange(10))
    for _ in range(4):
        batch, info = buffer.sample(return_info=True)
        assert torch.equal(batch, info["index"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"prefetch": 2}, "needs a batch size"), ({"prefetch": -1, "batch_size": 2}, "number of batches")],
)
def test_prefetch_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ReplayBufferError, match=message):
        ReplayBuffer(storage=LazyTensorStorage(4), **arguments)
