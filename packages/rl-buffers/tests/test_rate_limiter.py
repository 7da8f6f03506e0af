"""RateLimiter and statistics: who waits for whom, errors after the timeout, and counts that survive."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import threading

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, RateLimiter, ReplayBuffer, TensorDictReplayBuffer
from rl_core.errors import ReplayBufferError


def make(batch_size: int = 4, size: int = 100, prefetch: int | None = None, **limits) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(size),
        batch_size=batch_size,
        prefetch=prefetch,
        rate_limiter=RateLimiter(**{"timeout": 0, **limits}),
    )


def rows(n: int) -> torch.Tensor:
    return torch.arange(n)


@pytest.mark.parametrize("prefetch", [None, 3])
def test_samples_and_writes_are_refused_when_the_other_side_is_behind(prefetch):
    """2 * (inserted - 3) - sampled stays within -4 .. 4, but for one write."""
    buffer = make(prefetch=prefetch, samples_per_insert=2.0, min_size=3, tolerance=4)
    buffer.extend(rows(2))
    with pytest.raises(
        ReplayBufferError, match=r"4 more rows may not be sampled yet: 2 were written and 0 sampled.*2 are"
    ):
        buffer.sample()
    buffer.extend(rows(4))  # balance 2 * 3 = 6
    with pytest.raises(ReplayBufferError, match="no more rows may be written yet: 6 were written"):
        buffer.extend(rows(1))
    buffer.sample()  # 2
    buffer.sample()  # -2
    with pytest.raises(ReplayBufferError, match="may not be sampled"):
        buffer.sample()  # would be -6
    buffer.add(torch.tensor(0))  # 0
    buffer.sample()  # -4
    assert (buffer.rate_limiter.inserted, buffer.rate_limiter.sampled) == (7, 12)
    buffer.close()


def test_only_the_size_matters_without_a_ratio():
    buffer = make(min_size=10)
    buffer.extend(rows(9))
    assert buffer.rate_limiter.can_insert() and not buffer.rate_limiter.can_sample(4, len(buffer))
    buffer.extend(rows(500))
    for _ in range(50):
        buffer.sample()


def test_a_failed_sample_does_not_count():
    buffer = make(samples_per_insert=1.0, tolerance=8)
    buffer.append_transform(fail)
    buffer.extend(TensorDict({"x": rows(3)}, [3]))
    with pytest.raises(ValueError, match="broken"):
        buffer.sample()
    assert buffer.rate_limiter.sampled == 0


def fail(_: TensorDict) -> TensorDict:
    raise ValueError("broken")


def test_a_batch_that_never_fits_is_an_error_at_once():
    buffer = make(batch_size=9, samples_per_insert=1.0, tolerance=4, timeout=None)
    buffer.extend(rows(50))
    with pytest.raises(ReplayBufferError, match="a batch of 9 rows does not fit into a tolerance of 4"):
        buffer.sample()


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_writer_and_a_learner_wait_for_each_other(kind, prefetch):
    limiter = RateLimiter(samples_per_insert=4.0, min_size=8, tolerance=16, timeout=60)
    buffer = kind(storage=LazyTensorStorage(50), batch_size=8, prefetch=prefetch, rate_limiter=limiter)
    balances = []

    def write() -> None:
        for _ in range(100):
            buffer.extend(TensorDict({"x": torch.arange(2)}, [2]))

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(97):  # 4 * (200 - 8) = 768 rows = 96 batches, and the tolerance
        buffer.sample()
        balances.append(4 * (limiter.inserted - 8) - limiter.sampled)
    writer.join(60)
    assert not writer.is_alive() and limiter.inserted == 200 and limiter.sampled == 776
    assert min(balances) >= -16 and max(balances) <= 16 + 8
    stats = buffer.stats()
    assert stats["inserts"] == 200 and stats["insert_wait"] + stats["sample_wait"] > 0
    buffer.close()


def test_a_timeout_ends_the_wait():
    buffer = make(samples_per_insert=1.0, tolerance=4, timeout=0.05)
    buffer.extend(rows(20))
    with pytest.raises(ReplayBufferError, match="no more rows may be written yet"):
        buffer.extend(rows(1))
    assert buffer.stats()["insert_wait"] >= 0.05


def write_in_a_process(buffer: ReplayBuffer) -> None:
    for _ in range(20):
        buffer.extend(rows(2))


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file locks")
def test_processes_that_share_the_buffer_share_the_counts():
    limiter = RateLimiter(samples_per_insert=2.0, min_size=1, tolerance=8, timeout=60)
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=4, rate_limiter=limiter, shared=True)
    writer = multiprocessing.get_context("fork").Process(target=write_in_a_process, args=(buffer,))
    writer.start()
    for _ in range(20):
        buffer.sample()
    writer.join(60)
    assert writer.exitcode == 0 and limiter.inserted == 40 and limiter.sampled == 80


def test_counts_survive_saves_and_pickles_and_end_with_the_rows(tmp_path):
    buffer, loaded = (make(samples_per_insert=2.0, tolerance=100) for _ in range(2))
    buffer.extend(rows(10))
    buffer.sample()
    buffer.dumps(tmp_path / "saved")
    loaded.loads(tmp_path / "saved")
    copy = pickle.loads(pickle.dumps(buffer))
    for each in (buffer, loaded, copy):
        assert (each.rate_limiter.inserted, each.rate_limiter.sampled) == (10, 4)
        stats = each.stats()
        assert {name: stats[name] for name in ("size", "capacity", "inserts", "samples", "batches", "ratio")} == {
            "size": 10,
            "capacity": 100,
            "inserts": 10,
            "samples": 4,
            "batches": 1,
            "ratio": 0.4,
        }
    buffer.empty()
    assert buffer.rate_limiter.inserted == buffer.rate_limiter.sampled == 0
    assert buffer.stats()["samples"] == 0 and buffer.stats()["ratio"] == 0.0


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"samples_per_insert": 0.0}, "samples_per_insert must be a number above 0"),
        ({"min_size": 0}, "min_size must be at least 1"),
        ({"tolerance": 0}, "tolerance must be above 0"),
        ({"timeout": -1}, "timeout must be >= 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits, message):
    with pytest.raises(ReplayBufferError, match=message):
        RateLimiter(**limits)
