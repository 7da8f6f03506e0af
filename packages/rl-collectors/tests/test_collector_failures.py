"""What a user is told when a worker fails, dies or hangs, and that nothing is left behind, however a run ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

from rl_collectors import MultiAsyncCollector, MultiSyncCollector
from rl_core import EnvRef
from rl_core.errors import CollectorError
from rl_core.testing import CountingEnv
from rl_core.testing.collector_kit import constant_policy

KINDS = [MultiSyncCollector, MultiAsyncCollector]


class Saboteur(CountingEnv):
    """Does something at a step, in one worker only."""

    def __init__(self, deed=None, at=3):
        super().__init__(length=100)
        self.deed, self.at = deed, at

    def _step(self, tensordict):
        if self.deed is not None and self.count.item() >= self.at:
            self.deed()
        return super()._step(tensordict)


class UnpicklableError(Exception):
    def __init__(self, a, b):
        super().__init__("the lock broke")
        self.lock = threading.Lock()


def fail():
    raise ZeroDivisionError("the wheel came off")


def fail_unpicklably():
    raise UnpicklableError(1, 2)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    raise SystemExit(3)


def hang():
    threading.Event().wait()


def collector(kind, deed, policy=None, **kwargs):
    makers = [lambda: Saboteur(), lambda: Saboteur(deed)]
    return kind(makers, policy, frames_per_batch=8, total_frames=800, mp_start_method="fork", **kwargs)


def pids(subject):
    return [member.process.pid for member in subject.pool.members]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def assert_gone(workers):
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, f"of the workers {workers} some are still there"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("deed", "told"),
    [
        (fail, r"(?s)worker 1 failed while collecting: ZeroDivisionError: the wheel came off.*in fail"),
        (fail_unpicklably, r"(?s)worker 1 failed while collecting: .*the lock broke.*in fail_unpicklably"),
        (die, r"worker 1 died while collecting \(killed by SIGKILL"),
        (leave, r"worker 1 failed while collecting: SystemExit: 3"),
    ],
)
def test_a_worker_that_fails_or_dies_is_named_with_what_it_did(kind, deed, told):
    subject = collector(kind, deed)
    workers, begun = pids(subject), time.monotonic()
    with pytest.raises(CollectorError, match=told) as caught:
        list(subject)
    assert time.monotonic() - begun < 10
    assert isinstance(caught.value.__cause__, ZeroDivisionError) == (deed is fail)
    assert_gone(workers)
    with pytest.raises(CollectorError, match="shut down"):
        next(iter(subject))


def test_a_worker_that_hangs_is_named_with_the_line_where_it_is():
    subject = collector(MultiSyncCollector, hang, timeout=0.5)
    workers = pids(subject)
    with pytest.raises(CollectorError, match=r"(?s)worker 1 made no progress for 0.5 s while collecting.*in hang"):
        list(subject)
    assert_gone(workers)


def test_a_slow_worker_does_not_hang():
    def wait():
        threading.Event().wait(0.2)

    with collector(MultiSyncCollector, wait, timeout=0.6) as subject:
        assert subject.rollout().batch_size == (2, 4)
        assert subject.rollout().batch_size == (2, 4)  # four steps of 0.2 s


def test_an_environment_that_cannot_be_built_is_named():
    def broken():
        raise FileNotFoundError("no such level")

    with pytest.raises(
        CollectorError, match=r"(?s)worker 1 failed while building its environment.*FileNotFoundError: no such level"
    ):
        MultiSyncCollector([CountingEnv, broken], frames_per_batch=2, mp_start_method="fork")
    with pytest.raises(CollectorError, match=r"worker 0 failed while building.*returned dict, not an environment"):
        MultiSyncCollector([dict], frames_per_batch=2, mp_start_method="fork")
    with pytest.raises(CollectorError, match=r"worker 0 failed while building.*nosuch"):
        MultiSyncCollector([EnvRef("nosuch:env")], frames_per_batch=2, mp_start_method="fork")


def test_a_worker_that_dies_during_an_update_is_named():
    policy = constant_policy(0.5)
    subject = collector(MultiSyncCollector, None, policy)
    workers = pids(subject)
    os.kill(workers[1], signal.SIGKILL)
    with pytest.raises(CollectorError, match=r"worker 1 died while waiting \(killed by SIGKILL"):
        subject.update_policy_weights_()
    assert_gone(workers)
    with pytest.raises(CollectorError, match="shut down"):
        subject.rollout()


def test_a_worker_that_does_not_take_an_update_in_time_is_named():
    policy = constant_policy(0.5)
    with collector(MultiAsyncCollector, hang, policy, timeout=0.5) as subject:
        batches = iter(subject)
        next(batches)  # worker 0's; worker 1 hangs by now, or soon
        with pytest.raises(CollectorError, match=r"(?s)worker 1 (did not take version|made no progress).*in hang"):
            for _ in range(100):
                subject.update_policy_weights_()
                next(batches)


def test_an_interrupt_ends_the_workers():
    subject = collector(MultiSyncCollector, hang)
    workers = pids(subject)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="worker 1 did not end within 2 s"):
            list(subject)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert_gone(workers)


def test_workers_ignore_the_interrupt_that_the_terminal_sends_to_all_processes():
    with collector(MultiSyncCollector, None) as subject:
        for pid in pids(subject):
            os.kill(pid, signal.SIGINT)
        assert subject.rollout().batch_size == (2, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_and_memory_are_gone_after_each_way_of_ending(kind):
    handles = len(os.listdir("/proc/self/fd"))

    finished = collector(kind, None)
    workers = pids(finished)
    list(finished)
    finished.shutdown()
    finished.shutdown()

    left = collector(kind, None)
    workers += pids(left)
    for _ in left:
        break
    left.shutdown()

    dropped = collector(kind, None, constant_policy(0.5))
    workers += pids(dropped)
    dropped.update_policy_weights_()
    batch = next(iter(dropped))
    del dropped
    gc.collect()

    with collector(kind, None) as inside:
        workers += pids(inside)
    assert_gone(workers)
    assert not multiprocessing.active_children()
    del finished, left, inside
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= handles
    with open("/proc/self/maps") as maps:
        assert "rl-collectors" not in maps.read()
    assert (batch["action"] == 0.5).all()  # what was handed over stays


def test_workers_end_when_their_owner_is_killed():
    def own(pipe):
        subject = collector(MultiAsyncCollector, None)
        next(iter(subject))
        pipe.send(pids(subject))
        os.kill(os.getpid(), signal.SIGKILL)

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    owner = context.Process(target=own, args=(theirs,))
    owner.start()
    workers = ours.recv()
    owner.join()
    assert len(workers) == 2
    assert_gone(workers)


def test_what_cannot_be_sent_is_named_with_the_cure():
    lock = threading.Lock()
    with pytest.raises(CollectorError, match=r"create_env_fn cannot be sent to a worker .*mp_start_method='fork'"):
        MultiSyncCollector([lambda: lock], frames_per_batch=2, mp_start_method="spawn")
    with pytest.raises(CollectorError, match="mp_start_method is 'thread'"):
        MultiSyncCollector([CountingEnv], frames_per_batch=2, mp_start_method="thread")


def test_an_error_in_the_background_is_raised_by_the_next_call():
    class Buffer:
        def extend(self, data):
            pass

    subject = collector(MultiSyncCollector, fail, constant_policy(0.5), replay_buffer=Buffer())
    hook = threading.excepthook
    threading.excepthook = lambda args: None  # its traceback is printed, which is meant
    try:
        subject.start()
        subject._background._thread.join(10)
        with pytest.raises(CollectorError, match="the wheel came off"):
            subject.stats()
        with pytest.raises(CollectorError, match="the wheel came off"):
            subject.async_shutdown()
    finally:
        threading.excepthook = hook
    assert torch.is_grad_enabled()
