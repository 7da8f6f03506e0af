"""Several threads write, sample, change and save one buffer at once: no row is ever half of one and half of another."""

from __future__ import annotations

import threading

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TrajectoryStorage


def rows(start: int, n: int) -> TensorDict:
    """Row k holds k in every place."""
    k = torch.arange(start, start + n)
    x = k.unsqueeze(-1).expand(n, 2000).float()
    return TensorDict({"x": x, "next": TensorDict({"x": x + 1, "k": k}, [n])}, [n])


def check_whole(batch: TensorDict) -> None:
    k = batch["next", "k"].unsqueeze(-1)
    assert bool((batch["x"] == k).all()) and bool((batch["next", "x"] == k + 1).all()), "half a row was read"


@pytest.mark.parametrize(
    ("storage", "shared"),
    [(LazyTensorStorage, False), (LazyTensorStorage, True), (LazyMemmapStorage, False), (TrajectoryStorage, False)],
)
def test_rows_stay_whole_under_writers_samplers_and_savers(storage, shared, tmp_path):
    buffer = ReplayBuffer(storage=storage(200), batch_size=64, shared=shared)
    buffer.extend(rows(0, 50))
    failures: list[BaseException] = []
    done = threading.Event()

    def guarded(action) -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    def write(first: int) -> None:
        for i in range(40):
            start = first + 100 * i
            buffer.extend(rows(start, 37)) if i % 3 else buffer.add(rows(start, 1)[0])

    def change() -> None:
        for i in range(40):
            buffer[torch.tensor([3, 40, 7])] = rows(500_000 + 10 * i, 3)

    def sample() -> None:
        while not done.is_set():
            check_whole(buffer.sample())

    def save() -> None:
        for _ in range(4):
            buffer.dumps(tmp_path / "saved")
            other = ReplayBuffer(storage=storage(200))
            other.loads(tmp_path / "saved")
            check_whole(other[:])

    finite = [
        threading.Thread(target=guarded, args=(a,))
        for a in (lambda: write(10_000), lambda: write(20_000), change, save)
    ]
    endless = [threading.Thread(target=guarded, args=(sample,)) for _ in range(2)]
    for thread in (*finite, *endless):
        thread.start()
    for thread in finite:
        thread.join()
    done.set()
    for thread in endless:
        thread.join()
    assert not failures, failures
    check_whole(buffer[:])
    assert len(buffer) == 200 and buffer.write_count == 50 + 2 * (26 * 37 + 14)
