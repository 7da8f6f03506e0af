"""One buffer in several processes: writers and a learner, started by fork and by spawn, and what a death leaves."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import sys
import threading

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TrajectoryStorage,
)
from rl_core.errors import ReplayBufferError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file locks")
FORK = multiprocessing.get_context("fork") if sys.platform != "win32" else multiprocessing.get_context()


def rows(start: int, n: int) -> TensorDict:
    """Row k holds k in many places, so that half a row is seen."""
    k = torch.arange(start, start + n)
    return TensorDict({"x": k.unsqueeze(-1).expand(n, 300).float(), "k": k}, [n])


def check_whole(batch: TensorDict) -> None:
    assert (batch["x"] == batch["k"].unsqueeze(-1)).all(), "half a row was read"


def write(buffer: ReplayBuffer, start: int, writes: int, n: int) -> None:
    for i in range(writes):
        buffer.extend(rows(start + i * n, n))


def run(context, *calls) -> None:
    """Each call, a function and its arguments, in a process of its own; all must end well."""
    processes = [context.Process(target=target, args=arguments) for target, *arguments in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0, f"a process ended with {process.exitcode}"


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_writer_processes_extend_while_a_learner_samples(storage):
    buffer = ReplayBuffer(storage=storage(500), batch_size=32, shared=True)
    writers = [FORK.Process(target=write, args=(buffer, 100_000 * w, 1500, 7)) for w in range(2)]
    for writer in writers:
        writer.start()
    looks = 0
    while any(writer.is_alive() for writer in writers) or looks == 0:
        if len(buffer):
            check_whole(buffer.sample())
            looks += 1
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert looks > 1 and buffer.write_count == 2 * 1500 * 7 and len(buffer) == 500
    check_whole(buffer[:])
    assert len(buffer[:]["k"].unique()) == 500  # no write was lost to another


def test_a_spawned_process_allocates_the_rows_and_the_learner_finds_them():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40, shared_init=True), sampler=SamplerWithoutReplacement(), batch_size=5, shared=True
    )
    run(multiprocessing.get_context("spawn"), (write, buffer, 10, 5, 4))
    assert len(buffer) == 20
    seen = torch.cat([batch["k"] for batch in buffer])
    assert sorted(seen.tolist()) == list(range(10, 30))
    assert buffer.add(rows(99, 1)[0]) == 20


def test_rows_written_before_sharing_stay():
    buffer = ReplayBuffer(storage=LazyTensorStorage(30), batch_size=4)
    buffer.extend(rows(0, 10))
    run(FORK, (write, buffer.share(), 10, 1, 3))
    assert buffer[:]["k"].tolist() == list(range(13)) and buffer.share() is buffer


def test_a_sampler_learns_of_what_other_processes_wrote():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement(), batch_size=4, shared=True)
    buffer.extend(rows(0, 6))
    assert len(buffer.sample()) == 4  # of an epoch of six rows, which the writes below cut short
    run(FORK, (write, buffer, 6, 2, 3))
    epoch = [*buffer.sample()["k"].tolist(), *buffer.sample()["k"].tolist()]
    assert sorted(epoch) == list(range(4, 12))


def test_shared_priorities_are_those_of_the_process_that_set_them():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, alpha=1.0, beta=1.0), batch_size=50, shared=True
    )
    buffer.extend(rows(0, 4))
    buffer.update_priority(torch.arange(4), torch.zeros(4))
    run(FORK, (lower_all_but, buffer, 6))
    assert set(buffer.sample()["k"].tolist()) == {6}


def lower_all_but(buffer: TensorDictReplayBuffer, chosen: int) -> None:
    buffer.extend(rows(4, 4))
    buffer.update_priority(torch.arange(8), torch.where(torch.arange(8) == chosen, 1e6, 0.0))


def write_rollouts(buffer: ReplayBuffer, start: int, n: int) -> None:
    for i in range(n):
        buffer.extend(rollout(start + 4 * i))


def rollout(start: int) -> TensorDict:
    """Two environments, two steps each, no episode ends."""
    return TensorDict(
        {"k": torch.arange(start, start + 4).reshape(2, 2), "next": {"done": torch.zeros(2, 2, 1).bool()}}, [2, 2]
    )


def test_an_episode_table_learns_where_the_rollouts_of_others_are_cut():
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), shared=True)
    alone = ReplayBuffer(storage=LazyTensorStorage(20))
    for each in (buffer, alone):
        each.extend(rollout(0))
        each.episodes()
    run(FORK, (write_rollouts, buffer, 4, 3))
    write_rollouts(alone, 4, 3)
    buffer.sample(1)  # takes the lock
    found, expected = buffer.episodes().state_dict(), alone.episodes().state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, name


def test_too_many_rollouts_of_others_are_an_error_not_a_wrong_table():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), shared=True)
    buffer.extend(rollout(0))
    buffer.episodes()
    run(FORK, (write_rollouts, buffer, 4, 200))
    with pytest.raises(ReplayBufferError, match=r"200 rollouts of several environments.*more than the 165"):
        buffer.sample(1)


def replace(buffer: ReplayBuffer) -> None:
    buffer.empty()
    buffer.extend(rows(50, 3))


def test_a_buffer_that_another_process_emptied_and_filled_anew():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement(), batch_size=3, shared=True)
    buffer.extend(rows(0, 6))
    buffer.sample()
    run(FORK, (replace, buffer))
    assert sorted(buffer.sample()["k"].tolist()) == [50, 51, 52] and buffer.write_count == 3


def load(buffer: ReplayBuffer, folder: str) -> None:
    buffer.loads(folder)


def test_a_state_that_another_process_loaded(tmp_path):
    saved = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement(), batch_size=3)
    saved.extend(rows(20, 11))
    saved.dumps(tmp_path / "saved")
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement(), batch_size=3, shared=True)
    buffer.extend(rows(0, 2))
    run(FORK, (load, buffer, str(tmp_path / "saved")))
    assert sorted(k for batch in buffer for k in batch["k"].tolist()) == list(range(23, 31))
    assert buffer.add(rows(99, 1)[0]) == 3


def die_in_a_write(buffer: ReplayBuffer) -> None:
    buffer.storage.write = lambda *arguments: os._exit(0)
    buffer.extend(rows(0, 2))


def die_with_the_lock(buffer: ReplayBuffer) -> None:
    with buffer._lock:
        os._exit(0)


def test_a_process_that_dies_with_the_lock_gives_it_up():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=3, shared=True)
    buffer.extend(rows(0, 2))
    run(FORK, (die_with_the_lock, buffer))
    check_whole(buffer.sample())


def test_a_process_that_dies_in_a_write_is_noticed_and_emptying_goes_on():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=3, shared=True)
    buffer.extend(rows(0, 2))
    run(FORK, (die_in_a_write, buffer))
    for use in (buffer.sample, lambda: buffer.extend(rows(0, 1)), lambda: len(buffer)):
        with pytest.raises(ReplayBufferError, match=r"process \d+ ended while it changed rows .* call empty\(\)"):
            use()
    buffer.empty()
    buffer.extend(rows(7, 2))
    assert set(buffer.sample()["k"].tolist()) <= {7, 8}


def write_wrong(buffer: ReplayBuffer) -> None:
    try:
        buffer.extend(rows(0, 2).exclude("x"))
    except ReplayBufferError as error:
        os._exit(0 if "lack 'x'" in str(error) else 1)
    os._exit(2)


def test_refused_data_in_another_process_leave_the_buffer_usable():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=3, shared=True)
    buffer.extend(rows(0, 2))
    run(FORK, (write_wrong, buffer))
    assert len(buffer) == 2


def test_threads_of_one_process_wait_for_each_other_too():
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8, shared=True)
    threads = [threading.Thread(target=write, args=(buffer, 1000 * t, 30, 5)) for t in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert buffer.write_count == 450
    check_whole(buffer[:])


def test_lanes_are_shared_too():
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), shared=True)
    run(FORK, (extend_lanes, buffer))
    assert buffer[:].tolist() == [[0, 1, 2], [3, 4, 5]] and buffer.storage.lane_shape == (2,)


def extend_lanes(buffer: ReplayBuffer) -> None:
    buffer.extend(torch.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReplayBuffer(storage=ListStorage(5), shared=True), "a ListStorage cannot be shared"),
        (
            lambda: ReplayBuffer(storage=TrajectoryStorage(5), shared=True),
            "a TrajectoryStorage cannot be shared between processes: use LazyTensorStorage or LazyMemmapStorage",
        ),
        (lambda: ReplayBuffer(storage=TrajectoryStorage(5)).share(), "use LazyTensorStorage or LazyMemmapStorage"),
        (
            lambda: ReplayBuffer(storage=LazyTensorStorage(5), writer=TensorDictMaxValueWriter(), shared=True),
            "a TensorDictMaxValueWriter cannot be shared",
        ),
    ],
)
def test_parts_that_cannot_be_shared_are_named(make, message):
    with pytest.raises(ReplayBufferError, match=message):
        make()


def test_text_cannot_be_shared():
    data = TensorDict({"x": torch.zeros(2), "name": ["a", "b"]}, [2])
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), shared=True)
    with pytest.raises(ReplayBufferError, match=r"no tensors \('name'\) cannot be shared"):
        buffer.extend(data)
    buffer.extend(data.exclude("name"))
    other = ReplayBuffer(storage=LazyTensorStorage(5))
    other.extend(data)
    with pytest.raises(ReplayBufferError, match=r"no tensors \('name'\) cannot be shared"):
        other.share()
    other.extend(data)


def test_sharing_cannot_be_undone_and_parts_stay():
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), shared=True)
    for change in (
        lambda: buffer.share(False),
        lambda: buffer.set_storage(LazyTensorStorage(5)),
        lambda: buffer.set_writer(TensorDictMaxValueWriter()),
    ):
        with pytest.raises(ReplayBufferError, match="shared buffer"):
            change()


def test_a_pickled_shared_buffer_is_the_same_buffer():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=2, shared=True)
    buffer.extend(rows(0, 3))
    copy = pickle.loads(pickle.dumps(buffer))
    copy.extend(rows(3, 2))
    assert buffer[:]["k"].tolist() == copy[:]["k"].tolist() == [0, 1, 2, 3, 4]
    assert len(buffer) == 5 and len(copy) == 5


def test_the_memory_is_gone_when_the_owner_is():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), shared=True)
    buffer.extend(rows(0, 3))
    folder = buffer.storage.folder.path
    assert folder.is_dir()
    data = pickle.dumps(buffer)
    del buffer
    gc.collect()
    assert not folder.exists()
    with pytest.raises(ReplayBufferError, match="must live as long as the others"):
        pickle.loads(data)
