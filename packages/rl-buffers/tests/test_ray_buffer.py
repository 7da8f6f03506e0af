"""RayReplayBuffer: the same results as a buffer that is here, clients everywhere, and an end that is said in words."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time

import pytest
import ray
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RateLimiter,
    RayReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rl_buffers.ray.host import BufferHost
from rl_buffers.ray.wire import packed, unpacked
from rl_core.buffers import ReplayBuffer as BufferContract
from rl_core.errors import KeyMissingError, ReplayBufferError


@pytest.fixture(scope="module", autouse=True)
def embedded_ray():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def rows(start: int, n: int) -> TensorDict:
    return TensorDict({"x": torch.arange(start, start + n), "next": {"y": torch.zeros(n, 2)}}, [n])


def arguments(**kwargs):
    return {
        "storage": lambda: LazyTensorStorage(20),
        "batch_size": 4,
        "generator": torch.Generator().manual_seed(7),
        **kwargs,
    }


@pytest.fixture(scope="module")
def prioritized():
    """One actor for the tests that leave it usable."""
    buffer = RayReplayBuffer(
        replay_buffer_cls=TensorDictReplayBuffer,
        **arguments(sampler=lambda: PrioritizedSampler(20, alpha=1.0, beta=1.0, eps=0.0)),
    )
    yield buffer
    buffer.close()


def test_it_gives_what_a_buffer_here_gives(prioritized, tmp_path):
    here = TensorDictReplayBuffer(
        **arguments(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, alpha=1.0, beta=1.0, eps=0.0))
    )
    assert isinstance(prioritized, BufferContract)
    for buffer in (here, prioritized):
        assert buffer.extend(rows(0, 10)).tolist() == list(range(10))
        assert buffer.add(rows(10, 1)[0]) == 10 and len(buffer) == 11 and buffer.write_count == 11
        buffer.update_priority(torch.arange(11), torch.arange(11.0))
        buffer[3] = rows(33, 1)[0]
    for _ in range(4):
        one, other = here.sample(), prioritized.sample()
        assert set(one.keys(True)) == set(other.keys(True)) and bool((one == other).all())
        for buffer, batch in ((here, one), (prioritized, other)):
            buffer.update_tensordict_priority(batch.set("td_error", batch["x"].float()))
    batch, info = prioritized.sample(2, return_info=True)
    assert torch.equal(batch["index"], info["index"]) and here.sample(2).batch_size == (2,)
    batch["x"].zero_()  # a copy, and writable
    assert torch.equal(here[:]["x"], prioritized[:]["x"]) and int(prioritized[3]["x"]) == 33
    assert prioritized.stats()["samples"] == here.stats()["samples"] == 18
    prioritized.dumps(tmp_path / "saved")
    here.loads(tmp_path / "saved")
    state = prioritized.state_dict()
    expected = [here.sample()["x"].tolist() for _ in range(3)]
    assert [prioritized.sample()["x"].tolist() for _ in range(3)] == expected
    prioritized.load_state_dict(state)
    assert [prioritized.sample()["x"].tolist() for _ in range(3)] == expected
    prioritized.loads(tmp_path / "saved")
    assert [prioritized.sample()["x"].tolist() for _ in range(3)] == expected
    prioritized.append_transform(lambda td: td.set("twice", 2 * td["x"]))
    batch = prioritized.sample()
    assert torch.equal(batch["twice"], 2 * batch["x"])


def test_errors_are_those_of_the_buffer(prioritized):
    prioritized.empty()
    with pytest.raises(ReplayBufferError, match="the storage is empty"):
        prioritized.sample()
    prioritized.extend(rows(0, 3))
    with pytest.raises(ReplayBufferError, match="the data have 'extra', which the rows of this buffer do not have"):
        prioritized.extend(rows(0, 2).set("extra", torch.zeros(2)))
    with pytest.raises(KeyMissingError, match="needs 'td_error'"):
        prioritized.update_tensordict_priority(prioritized.sample())


def test_clients_go_to_tasks_and_to_other_processes(prioritized):
    prioritized.empty()

    @ray.remote
    def write(buffer, start):
        buffer.extend(rows_of(start))
        return len(buffer)

    def rows_of(start):
        return TensorDict({"x": torch.arange(start, start + 3), "next": {"y": torch.zeros(3, 2)}}, [3])

    assert ray.get(write.remote(prioritized.clients(2)[1], 10)) == 3
    process = multiprocessing.get_context("spawn").Process(target=write_from_a_process, args=(prioritized.client(),))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert sorted(prioritized[:]["x"].tolist()) == [10, 11, 12, 77]


def write_from_a_process(client: RayReplayBuffer) -> None:
    client.add(rows(77, 1)[0])
    client.close()  # ends nothing


def test_an_iteration_covers_the_rows_and_a_waiting_call_lets_others_through():
    limiter = RateLimiter(min_size=10, timeout=60)
    buffer = RayReplayBuffer(
        **arguments(sampler=SamplerWithoutReplacement, rate_limiter=limiter, prefetch=2),
        remote_config={"num_cpus": 0.5},
    )
    with pytest.raises(ReplayBufferError, match="iteration needs a batch size"):
        RayReplayBuffer._connect(buffer.name, "", None, None).__iter__()
    found = []
    waiting = threading.Thread(target=lambda: found.append(buffer.sample()))
    waiting.start()
    buffer.extend(rows(0, 5))
    buffer.extend(rows(5, 5))
    waiting.join(60)
    assert not waiting.is_alive() and len(found) == 1
    for _ in range(2):
        assert sorted(x for batch in buffer for x in batch["x"].tolist()) == list(range(10))
    buffer.close()
    buffer.close()
    with pytest.raises(ReplayBufferError, match="was closed"):
        len(buffer)


def test_a_killed_actor_is_named_within_seconds():
    class Mortal(ReplayBuffer):
        def pid(self) -> int:
            return os.getpid()

    buffer = RayReplayBuffer(
        replay_buffer_cls=Mortal, **arguments(rate_limiter=lambda: RateLimiter(min_size=10, timeout=None))
    )
    client = buffer.client()
    messages: list[str] = []

    def wait() -> None:
        try:
            buffer.sample()
        except ReplayBufferError as error:
            messages.append(str(error))

    client.timeout = 0.2
    with pytest.raises(ReplayBufferError, match=r"gave no answer within 0\.2 s"):
        client.sample()
    client.timeout = None
    waiting = threading.Thread(target=wait)
    waiting.start()
    start = time.monotonic()
    os.kill(buffer._call("pid"), signal.SIGKILL)
    waiting.join(60)
    with pytest.raises(ReplayBufferError, match=f"the actor '{buffer.name}' that holds the replay buffer has died"):
        client.extend(rows(0, 2))
    assert time.monotonic() - start < 30 and "its rows are lost unless they were saved" in messages[0]
    with pytest.raises(ReplayBufferError, match=r"has died|is not there"):
        len(pickle.loads(pickle.dumps(client)))


def test_what_travels_arrives_whole_and_without_the_memory_it_is_a_view_of():
    big = torch.arange(100_000)
    td = TensorDict(
        {"a": {"b": torch.ones(2, 3)}, "text": NonTensorStack("one", "two"), "empty": torch.zeros(2, 0)}, [2]
    )
    ragged = LazyStackedTensorDict(*(TensorDict({"x": torch.full((n,), n)}, []) for n in (1, 2)), stack_dim=0)
    value = {
        "view": big[5:7],
        "td": td,
        "ragged": ragged,
        "plain": [1, "a", (None, True)],
        "half": torch.ones(3).bfloat16(),
    }
    content = pickle.dumps(packed(value))
    assert len(content) < 20_000
    found = unpacked(pickle.loads(content))
    assert found["view"].tolist() == [5, 6] and found["plain"] == [1, "a", (None, True)]
    assert (
        found["td"].batch_size == (2,)
        and found["td"]["text"] == ["one", "two"]
        and found["td"]["empty"].shape == (2, 0)
    )
    assert torch.equal(found["td"]["a", "b"], torch.ones(2, 3)) and found["half"].dtype == torch.bfloat16
    assert [part["x"].tolist() for part in found["ragged"].unbind(0)] == [[1], [2, 2]]
    found["view"][0] = 9
    assert big[5] == 5


def test_the_host_makes_the_parts_and_says_what_went_wrong():
    host = BufferHost(ReplayBuffer, ((), {"storage": lambda: ListStorage(5), "batch_size": 2}))
    rows_of_any_kind = [{"text": "a", "x": torch.ones(2)}] * 2
    host.call("extend", packed((rows_of_any_kind,)), {})
    batch = unpacked(pickle.loads(pickle.dumps(host.call("sample", (), {}))))
    assert batch["text"] == ["a", "a"] and batch["x"].tolist() == [[1.0, 1.0]] * 2
    with pytest.raises(ReplayBufferError, match="batch_size must be at least 1"):
        BufferHost(ReplayBuffer, ((), {"batch_size": 0})).ready()
