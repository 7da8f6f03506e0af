"""One priority tree used by several threads and several processes, forked and spawned."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, PrioritizedSampler, PriorityTree, TensorDictPrioritizedReplayBuffer, native
from rl_core.errors import ReplayBufferError

RAW = {"alpha": 1.0, "eps": 0.0}

# Every process writes, draws and updates; the parent then checks that nothing was lost.
SCRIPT = """
import math, sys
import torch
import torch.multiprocessing as mp
from rl_buffers import PrioritizedSampler, native
from rl_core.testing.numbered_rows import CountedSlots

ROWS, ROUNDS = 1000, 150

def work(sampler, first):
    torch.set_num_threads(1)
    torch.manual_seed(first)
    for k in range(ROUNDS):
        index, info = sampler.sample(CountedSlots(ROWS), 32)
        assert bool((info["priority_weight"] > 0).all()) and bool((info["index_generation"] > 0).all())
        sampler.update_priority(index, torch.rand(32) + 0.1, info["index_generation"])
        sampler.extend((first + 10 * k + torch.arange(10)) % ROWS)

if __name__ == "__main__":
    expected, *methods = sys.argv[1:]
    assert native.native_state() == expected, native.native_state()
    sampler = PrioritizedSampler(ROWS, alpha=1.0, beta=0.5)
    sampler.extend(torch.arange(ROWS))
    sampler.share()
    workers = [mp.get_context(m).Process(target=work, args=(sampler, 500 * k)) for k, m in enumerate(methods)]
    for worker in workers:
        worker.start()
    work(sampler, 250)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0, worker.exitcode
    state = sampler.state_dict()
    written = ROWS + (1 + len(workers)) * ROUNDS * 10
    assert int(state["generation"].sum()) == written, (int(state["generation"].sum()), written)
    stats = sampler.tree.stats()
    assert math.isclose(stats.total, math.fsum(state["priority"].tolist()), rel_tol=1e-12)
    assert stats.smallest == float(state["priority"].min()) and stats.largest == float(state["priority"].max())
    print("shared")
"""


@pytest.mark.parametrize("state", ["native", "off"])
def test_forked_and_spawned_processes_work_on_one_tree(state, tmp_path):
    if state == "native" and native.native_state() != "native":
        pytest.skip("the kernels are not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {**os.environ, "RL_BUFFERS_NATIVE": "0" if state == "off" else "1"}
    methods = [method for method in ("fork", "spawn") if method in multiprocessing.get_all_start_methods()]
    command = [sys.executable, str(script), state, *methods]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "shared", done.stderr


@pytest.fixture(params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


def test_a_shared_tree_does_not_grow(kernels):
    tree = PriorityTree(4)
    tree.share()
    assert tree.is_shared
    tree.write(torch.arange(4), **RAW)
    with pytest.raises(ReplayBufferError, match=r"slot 4 is beyond the 4 slots.*before share\(\)"):
        tree.write(torch.tensor([4]), **RAW)


def test_sharing_keeps_what_is_there(kernels):
    tree = PriorityTree(4)
    tree.write(torch.arange(3), **RAW)
    tree.update(torch.tensor([1]), torch.tensor([5.0]), **RAW)
    before = tree.state_dict()
    tree.share()
    tree.share()
    assert torch.equal(tree.state_dict()["priority"], before["priority"])


def test_a_copy_of_a_shared_tree_is_not_shared():
    if native.native_state() != "native":
        pytest.skip("without the kernels a shared tree holds a lock that only processes at their start can get")
    tree = PriorityTree(4)
    tree.write(torch.arange(3), **RAW)
    tree.share()
    tree.memory[0] = 2**31 - 1  # as if another process were at work
    other = copy.deepcopy(tree)
    tree.memory[0] = 0
    other.update(torch.tensor([0]), torch.tensor([5.0]), **RAW)
    assert not other.is_shared and tree.stats().total == 3.0 and other.stats().total == 7.0


def test_threads_that_write_draw_and_update_lose_nothing(kernels):
    tree, rounds = PriorityTree(600), 60
    tree.write(torch.arange(600), **RAW)
    failures: list[BaseException] = []

    def work(first: int) -> None:
        generator = torch.Generator().manual_seed(first)
        try:
            for k in range(rounds):
                draw = tree.sample(40, first * 1000 + k, beta=0.5)
                assert bool((draw.weight > 0).all()) and int(draw.slots.max()) < 600
                raw = torch.rand(40, generator=generator) + 0.1
                assert 0 <= tree.update(draw.slots, raw, draw.generation, **RAW) <= 40
                tree.write((first * 150 + 7 * k + torch.arange(7)) % 600, **RAW)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    state, stats = tree.state_dict(), tree.stats()
    assert int(state["generation"].sum()) == 600 + 4 * rounds * 7
    assert math.isclose(stats.total, math.fsum(state["priority"].tolist()), rel_tol=1e-12)


def test_a_buffer_stays_whole_while_threads_extend_sample_and_update(kernels):
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(500), batch_size=32)

    def rows(start: int, n: int) -> TensorDict:
        k = torch.arange(start, start + n)
        return TensorDict({"x": k, "y": 3 * k}, [n])

    buffer.extend(rows(0, 500))
    failures: list[BaseException] = []

    def extend() -> None:
        for k in range(100):
            buffer.extend(rows(500 + 20 * k, 20))

    def learn() -> None:
        for _ in range(100):
            sample = buffer.sample()
            assert torch.equal(sample["y"], 3 * sample["x"])
            sample["td_error"] = torch.rand(32)
            buffer.update_tensordict_priority(sample)

    def guarded(work) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (extend, learn, learn)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and sorted(buffer[:]["x"].tolist()) == list(range(2000, 2500))


def test_a_sampler_can_be_handed_to_a_process_without_being_shared(kernels):
    sampler = PrioritizedSampler(10, alpha=1.0, beta=1.0)
    sampler.extend(torch.arange(10))
    other = copy.deepcopy(sampler)
    other.update_priority(torch.arange(10), torch.full((10,), 5.0))
    assert sampler.tree.stats().total == pytest.approx(10.0) and not other.tree.is_shared
