"""Collecting in a thread beside the training."""

import threading
from itertools import pairwise

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector
from rl_collectors.background import Background
from rl_core import ExplorationType, exploration_type, set_exploration_type
from rl_core.errors import CollectorError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_core.testing.collector_kit import constant_policy


class Buffer:
    """Keeps rows, and says when it has enough."""

    def __init__(self, enough=1):
        self.rows, self.enough, self.full = [], enough, threading.Event()

    def extend(self, data):
        self.rows.append(data)
        if len(self.rows) >= self.enough:
            self.full.set()


def test_the_budget_is_collected_in_the_background():
    buffer = Buffer()
    collector = Collector(CountingEnv(), frames_per_batch=3, total_frames=12, replay_buffer=buffer)
    collector.start()
    collector._background._thread.join(10)
    assert not collector.is_running
    collector.async_shutdown()
    assert torch.cat(buffer.rows)["observation"].flatten().tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1]
    assert collector.closed


def test_within_a_pause_nothing_is_collected():
    buffer = Buffer()
    collector = Collector(ArrayCountingEnv(), frames_per_batch=4, replay_buffer=buffer)
    collector.start()
    assert buffer.full.wait(10)
    with collector.pause():
        frames = collector.frames
        for _ in range(100):
            assert collector.frames == frames == sum(rows.numel() for rows in buffer.rows)
    buffer.full.clear()
    assert buffer.full.wait(10)  # it goes on
    collector.async_shutdown(10)


def test_the_policy_in_training_does_not_act_itself():
    policy, buffer = constant_policy(0.5), Buffer()
    collector = Collector(
        ArrayCountingEnv(), policy, frames_per_batch=4, replay_buffer=buffer, track_policy_version=True
    )
    collector.start()
    for version in range(1, 4):
        with torch.no_grad():
            next(policy.parameters()).fill_(0.5 + version / 8)
        collector.update_policy_weights_()
        buffer.full.clear()
        assert buffer.full.wait(10)
    collector.async_shutdown(10)
    for rows in buffer.rows:
        assert (rows["action"] == 0.5 + rows["policy_version"].unsqueeze(-1) / 8).all()
    assert collector.policy_version == 3


def test_what_goes_wrong_is_raised_by_the_next_call():
    class Breaking(CountingEnv):
        def _step(self, tensordict):
            raise ZeroDivisionError("the wheel came off")

    hook, seen = threading.excepthook, []
    threading.excepthook = seen.append
    try:
        collector = Collector(Breaking, constant_policy(0.5), frames_per_batch=3, replay_buffer=Buffer())
        collector.start()
        collector._background._thread.join(10)
        for call in (collector.stats, collector.update_policy_weights_, collector.next, collector.pause().__enter__):
            with pytest.raises(CollectorError, match="the wheel came off"):
                call()
        with pytest.raises(CollectorError, match="the wheel came off") as caught:
            collector.async_shutdown()
    finally:
        threading.excepthook = hook
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and collector.env.is_closed
    assert len(seen) == 1  # and it is printed at once


def test_it_needs_a_buffer_and_forbids_iteration():
    with pytest.raises(CollectorError, match="replay_buffer="):
        Collector(CountingEnv(), frames_per_batch=3).start()
    collector = Collector(CountingEnv(), frames_per_batch=3, replay_buffer=Buffer())
    with pytest.raises(CollectorError, match="was not started"):
        collector.pause()
    collector.start()
    with pytest.raises(CollectorError, match="collects in the background"):
        next(iter(collector))
    collector.shutdown()
    assert not collector.is_running


def test_a_thread_that_does_not_end_in_time_is_named():
    go = threading.Event()
    background = Background(lambda: go.wait(20), "waiting")
    background.start()
    with pytest.raises(CollectorError, match=r"did not end within 0\.05 s"):
        background.stop(0.05)
    go.set()
    background.stop(10)


def test_a_batch_is_begun_only_where_it_may_be_and_asked_again_when_woken():
    allowed, begun, three = [1], [], threading.Event()

    def step():
        begun.append(allowed[0])
        if len(begun) == 3:
            three.set()
        return True

    background = Background(step, "paced", lambda: len(begun) < allowed[0])
    background.start()
    allowed[0] = 3
    background.wake()
    assert three.wait(10)
    background.stop(10)
    assert len(begun) == 3 and not background.running


def test_pauses_may_be_nested():
    begun, more = [], threading.Event()

    def step():
        begun.append(1)
        more.set()
        return True

    background = Background(step, "paused")
    background.start()
    assert more.wait(10)
    with background.paused():
        with background.paused():
            pass
        before = len(begun)
        for _ in range(100):
            assert len(begun) == before
    more.clear()
    assert more.wait(10)
    background.stop(10)


def test_pauses_that_follow_each_other_do_not_bring_collecting_to_a_standstill():
    begun, seen = [], []
    background = Background(lambda: begun.append(1) or True, "paused")
    background.start()
    for _ in range(50):
        with background.paused():
            seen.append(len(begun))
            sum(range(10_000))  # most of the time is spent in pauses
    background.stop(10)
    assert all(later > earlier for earlier, later in pairwise(seen))


def test_a_pause_ends_where_no_batch_may_begin():
    begun, first = [], threading.Event()

    def step():
        begun.append(1)
        first.set()
        return True

    background = Background(step, "paced", lambda: not begun)
    background.start()
    assert first.wait(10)
    with background.paused():
        pass
    background.stop(10)
    assert len(begun) == 1


def test_a_pause_does_not_keep_the_thread_from_ending():
    background = Background(lambda: True, "paused")
    background.start()
    with background.paused():
        background.stop(10)
    assert not background.running


def test_an_error_is_untold_until_it_was_raised(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    background = Background(lambda: 1 // 0, "failing")
    background.start()
    background.join(10)
    assert background.failed_untold
    for _ in range(2):
        with pytest.raises(CollectorError, match="ended with ZeroDivisionError"):
            background.check()
    assert not background.failed_untold


def test_the_callers_exploration_type_is_its_own():
    acting, buffer, seen = threading.Event(), Buffer(), []
    seen_outside = threading.Event()

    class Watching(nn.Module):
        def forward(self, observation):
            seen.append(exploration_type())
            acting.set()
            seen_outside.wait(10)
            return observation * 0

    policy = TensorDictModule(Watching(), ["observation"], ["action"])
    collector = Collector(CountingEnv(), policy, frames_per_batch=2, replay_buffer=buffer)
    Watching.__deepcopy__ = lambda self, memo: self
    with set_exploration_type(ExplorationType.MODE):
        collector.start()
        assert acting.wait(10)
        outside = exploration_type()
        seen_outside.set()
        collector.async_shutdown(10)
    assert seen[0] is ExplorationType.RANDOM and outside is ExplorationType.MODE
