"""Collectors whose workers are joined by ``torch.distributed``: what they yield, and what is told when one fails."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import sys
import time
from functools import partial

import cloudpickle
import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import distributed, nn

from rl_collectors import (
    Collector,
    DistributedCollector,
    DistributedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    MultiSyncCollector,
    SharedMemWeightSyncScheme,
)
from rl_collectors.distributed.__main__ import main
from rl_collectors.distributed.launch import run_worker
from rl_collectors.distributed.rendezvous import introduce, join_store, open_store
from rl_collectors.process.multi_async import MultiAsyncCollector
from rl_core import registry
from rl_core.errors import CollectorError
from rl_core.testing import ArrayCountingEnv, CollectorKit, CountingEnv, GroupCountingEnv
from rl_core.testing.collector_kit import constant_policy
from rl_core.testing.kit import overrides_check

KINDS = [True, False]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test file


class Saboteur(CountingEnv):
    """Does something at a step, in one worker only."""

    def __init__(self, deed=None, at=3, reset_at=None):
        super().__init__(length=100 if reset_at is None else reset_at)
        self.deed, self.at, self.reset_at = deed, at, reset_at
        self.resets = 0

    def _reset(self, tensordict=None, **kwargs):
        self.resets += 1
        if self.deed is not None and self.reset_at is not None and self.resets > 1:
            self.deed()
        return super()._reset(tensordict, **kwargs)

    def _step(self, tensordict):
        if self.deed is not None and self.reset_at is None and self.count.item() >= self.at:
            self.deed()
        return super()._step(tensordict)


def fail():
    raise ZeroDivisionError("the wheel came off")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    raise SystemExit(3)


def stop_the_process():
    os.kill(os.getpid(), signal.SIGSTOP)


def hang():
    import threading

    threading.Event().wait()


def counting(length=3, **kwargs):
    return partial(ArrayCountingEnv, length, **kwargs)


def collector(create_env_fn=None, policy=None, **kwargs):
    create_env_fn = counting() if create_env_fn is None else create_env_fn
    if not isinstance(create_env_fn, list):
        kwargs.setdefault("num_collectors", 2)
    return DistributedCollector(create_env_fn, policy, **{"frames_per_batch": 8, **kwargs})


def sabotaged(deed, sync=True, policy=None, **kwargs):
    makers = [Saboteur, partial(Saboteur, deed, **kwargs.pop("env", {}))]
    return collector(makers, policy, sync=sync, total_frames=800, **kwargs)


def pids(subject):
    return [member.where.pid for member in subject.pool.members]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition):
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it took too long"


def assert_gone(workers):
    wait_for(lambda: not any(is_alive(pid) for pid in workers))


# ------------------------------------------------------------------------------------------------ the core's checks
class TestSyncDistributedCollector(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return DistributedCollector(
            create_env_fn, policy, num_collectors=2, frames_per_batch=frames_per_batch, total_frames=total_frames
        )


class TestAsyncDistributedCollector(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False
    batches_in_flight = 2

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return DistributedCollector(
            create_env_fn, policy, num_collectors=1, sync=False, frames_per_batch=frames_per_batch,
            total_frames=total_frames,
        )  # fmt: skip

    @overrides_check(reason="the check's budget ends before two batches in flight are over; a test below has it")
    def test_updated_weights_arrive(self) -> None:
        pass


# ------------------------------------------------------------------------------------------------ frames and shapes
def test_batches_equal_those_of_worker_processes_on_one_machine():
    given = {"frames_per_batch": 12, "total_frames": 30, "track_policy_version": True}
    torch.manual_seed(3)
    with MultiSyncCollector(counting(batch_size=[3]), num_workers=2, mp_start_method="fork", **given) as local:
        local.set_seed(5)
        reference = list(local)
    with collector(counting(batch_size=[3]), **given) as subject:
        assert isinstance(subject, DistributedCollector) and isinstance(subject, MultiSyncCollector)
        subject.set_seed(5)
        batches = list(subject)
    assert [tuple(batch.batch_size) for batch in batches] == [(2, 3, 2), (2, 3, 2), (2, 3, 1)]
    for ours, theirs in zip(batches, reference, strict=True):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        assert (ours == theirs).all() and ours.names == theirs.names


def test_asynchronous_batches_are_of_one_worker_and_add_up():
    with collector(sync=False, frames_per_batch=8, total_frames=20) as subject:
        assert isinstance(subject, DistributedCollector) and isinstance(subject, MultiAsyncCollector)
        batches = list(subject)
    assert sorted(batch.numel() for batch in batches) == [4, 8, 8]
    ids = torch.cat([batch["collector", "traj_ids"] for batch in batches])
    assert sorted(set(ids.tolist())) == list(range(len(set(ids.tolist()))))


def test_every_process_of_a_collector_is_a_worker():
    with collector([counting(2), counting(3)], num_workers_per_collector=2, frames_per_batch=16) as subject:
        batch = subject.rollout()
        assert len(set(pids(subject))) == 4
    assert batch["observation"].squeeze(-1).tolist() == [[0, 1, 0, 1]] * 2 + [[0, 1, 2, 0]] * 2


def test_groups_and_texts_travel_and_a_batch_may_change_its_layout():
    class Talking(GroupCountingEnv):
        def _reset(self, tensordict=None, **kwargs):
            return self._told(super()._reset(tensordict, **kwargs))

        def _step(self, tensordict):
            return self._told(super()._step(tensordict))

        def _told(self, td):
            td["agents"].batch_size = [2]
            return td.set("said", f"count {int(td['agents', 'observation'].max())} {'-' * 3000}")

    with collector(Talking, frames_per_batch=6, total_frames=10) as subject:
        first, second = list(subject)
    assert first["agents"].batch_size == (2, 3, 2) and second["agents"].batch_size == (2, 2, 2)
    assert first["agents", "observation"].squeeze(-1).tolist() == [[[0, 0], [1, 1], [2, 2]]] * 2
    assert [[text[:7] for text in row] for row in first["next", "said"]] == [["count 1", "count 2", "count 3"]] * 2


def test_some_workers_may_be_cut_short():
    def slow(env):
        import threading

        threading.Event().wait(0.02)
        return env

    class SlowEnv(CountingEnv):
        def _step(self, tensordict):
            return slow(super()._step(tensordict))

    makers = [partial(CountingEnv, length=5), partial(SlowEnv, length=5)]
    with collector(makers, frames_per_batch=640, preemptive_threshold=0.5) as subject:
        batch = subject.rollout()
    mask = batch["collector", "mask"]
    assert mask[0].all() and not mask[1].all() and mask[1, 0]
    assert (batch["collector", "traj_ids"][1] == -1).eq(~mask[1]).all()


# ------------------------------------------------------------------------------------------------ weights
def fill(policy, level):
    with torch.no_grad():
        next(policy.parameters()).fill_(level)
    return policy


@pytest.mark.parametrize("scheme", [DistributedWeightSyncScheme, MultiProcessWeightSyncScheme])
def test_every_worker_acts_with_new_weights_and_echoes_their_version(scheme):
    policy = constant_policy(0.0)
    given = {"weight_sync_schemes": {"policy": scheme()}, "track_policy_version": True, "frames_per_batch": 4}
    with collector(CountingEnv, policy, **given) as subject:
        subject.update_policy_weights_(fill(policy, 0.5))
        batch = subject.rollout()
        assert (batch["action"] == 0.5).all() and (batch["policy_version"] == 1).all()
        subject.update_policy_weights_(fill(policy, 1.0), worker_ids=[1])
        batch = subject.rollout()
        assert (batch["action"][0] == 0.5).all() and (batch["action"][1] == 1.0).all()
        assert batch["policy_version"].tolist() == [[1, 1], [2, 2]]
        with pytest.raises(CollectorError, match=r"there is no worker 2; the workers are 0 to 1"):
            subject.update_policy_weights_(worker_ids=[2])
        with pytest.raises(
            CollectorError, match=r"(?s)worker 0 \(rank 1 on .*failed while taking new weights.*'wrong'"
        ):
            subject.update_policy_weights_({"wrong": torch.zeros(1)})
        assert (subject.rollout()["action"][1] == 1.0).all()  # they go on with the weights they had


def test_an_asynchronous_worker_takes_weights_between_two_policy_calls():
    policy = constant_policy(0.0)
    with collector(
        partial(CountingEnv, length=5), policy, num_collectors=1, sync=False, total_frames=160,
        track_policy_version=True,
    ) as subject:  # fmt: skip
        batches = iter(subject)
        next(batches)
        for level in (1, 2):
            subject.update_policy_weights_(fill(policy, float(level)))
            for _ in range(3):
                batch = next(batches)
                assert torch.equal(batch["action"].squeeze(-1), batch["policy_version"].float())
            assert (batch["policy_version"] == level).all()  # the third is begun after the update


def test_weights_are_taken_in_the_middle_of_a_batch(tmp_path):
    mark = tmp_path / "in the second batch"

    class SlowEnv(CountingEnv):
        steps = 0

        def _step(self, tensordict):
            import threading

            self.steps += 1
            if self.steps == 310:
                mark.touch()
            threading.Event().wait(0.005 if self.steps > 300 else 0.0)
            return super()._step(tensordict)

    class Level(nn.Module):
        def __init__(self):
            super().__init__()
            self.level = nn.Parameter(torch.zeros(1))

        def forward(self, observation):
            return self.level + 0 * observation  # of its own memory, which new weights do not overwrite

    policy = TensorDictModule(Level(), in_keys=["observation"], out_keys=["action"])
    with collector(
        partial(SlowEnv, length=5), policy, num_collectors=1, sync=False, frames_per_batch=300, total_frames=600,
        track_policy_version=True,
    ) as subject:  # fmt: skip
        batches = iter(subject)
        next(batches)
        wait_for(mark.exists)
        subject.update_policy_weights_(fill(policy, 1.0))  # returns long before the batch is finished
        batch = next(batches)
    assert (batch["policy_version"][:10] == 0).all() and batch["policy_version"][-1] == 1
    assert torch.equal(batch["action"].squeeze(-1), batch["policy_version"].float())


@pytest.mark.parametrize(
    ("given", "levels"),
    [({"update_after_each_batch": True}, [0, 1, 2, 3]), ({"max_weight_update_interval": 2}, [0, 0, 2, 2])],
)
def test_weights_are_sent_by_themselves_on_request(given, levels):
    policy = constant_policy(0.0)
    with collector(CountingEnv, policy, total_frames=32, **given) as subject:
        for k, batch in enumerate(subject):
            assert (batch["action"] == levels[k]).all()
            fill(policy, k + 1.0)


def test_shared_memory_does_not_reach_other_machines():
    with pytest.raises(CollectorError, match=r"'policy' cannot travel in shared memory.*DistributedWeightSyncScheme"):
        collector(weight_sync_schemes={"policy": SharedMemWeightSyncScheme()})


def test_the_weight_sync_serves_worker_processes_too():
    policy = constant_policy(0.0)
    scheme = registry.weight_syncs.get("distributed")()
    with MultiSyncCollector(
        CountingEnv, policy, num_workers=2, frames_per_batch=4, weight_sync_schemes={"policy": scheme},
        mp_start_method="fork",
    ) as subject:  # fmt: skip
        for level in (1.0, 2.0):
            subject.update_policy_weights_(fill(policy, level))
            assert (subject.rollout()["action"] == level).all()


# ------------------------------------------------------------------------------------------------ what goes wrong
@pytest.mark.parametrize("sync", KINDS)
@pytest.mark.parametrize(
    ("deed", "told"),
    [
        (fail, r"(?s)worker 1 \(rank 2 on \S+, pid \d+\) failed while collecting: ZeroDivisionError: .*in fail"),
        (die, r"worker 1 \(rank 2 on \S+, pid \d+\) died while collecting \(killed by SIGKILL"),
        (leave, r"worker 1 \(rank 2 on \S+, pid \d+\) failed while collecting: SystemExit: 3"),
    ],
)
def test_a_worker_that_fails_or_dies_is_named_with_its_place(sync, deed, told):
    subject = sabotaged(deed, sync)
    workers, begun = pids(subject), time.monotonic()
    with pytest.raises(CollectorError, match=told) as caught:
        list(subject)
    assert time.monotonic() - begun < 10
    assert f"pid {workers[1]}" in str(caught.value) and f" on {socket.gethostname()}," in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError) == (deed is fail)
    assert_gone(workers)
    with pytest.raises(CollectorError, match="shut down"):
        next(iter(subject))


def test_an_environment_that_cannot_be_built_or_reset_is_named():
    def broken():
        raise FileNotFoundError("no such level")

    with pytest.raises(
        CollectorError, match=r"(?s)worker 1 \(rank 2 on .* failed while building its environment.*: no such level"
    ):
        collector([CountingEnv, broken])
    subject = sabotaged(fail, env={"reset_at": 2})
    with pytest.raises(CollectorError, match=r"(?s)worker 1 \(rank 2 .* failed while collecting: Zero.*in _reset"):
        list(subject)


def test_a_worker_that_dies_while_it_waits_is_named_by_the_next_update():
    subject = sabotaged(None, policy=constant_policy(0.5))
    workers = pids(subject)
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(CollectorError, match=r"worker 0 \(rank 1 on .*\) died while waiting \(killed by SIGKILL"):
        subject.update_policy_weights_()
    assert_gone(workers)


def test_a_worker_that_hangs_is_named_with_the_line_where_it_is():
    subject = sabotaged(hang, timeout=1.0)
    workers = pids(subject)
    with pytest.raises(CollectorError, match=r"(?s)worker 1 \(.* made no progress for 1 s while collecting.*in hang"):
        list(subject)
    assert_gone(workers)


def test_a_worker_that_falls_silent_is_named_though_its_connection_stands():
    subject = sabotaged(stop_the_process, sync=False, silence=2.0)  # the other worker goes on delivering
    workers = pids(subject)
    with pytest.raises(CollectorError, match=r"worker 1 \(.* was not heard of for 2 s while collecting"):
        list(subject)
    assert_gone(workers)


# ------------------------------------------------------------------------------------------------ the end
def test_nothing_is_left_after_each_way_of_ending():
    finished = collector(total_frames=16)
    workers = pids(finished)
    list(finished)
    finished.shutdown()
    finished.shutdown()

    left = collector()
    workers += pids(left)
    for _ in left:
        break
    left.shutdown()

    dropped = collector(CountingEnv, constant_policy(0.5), sync=False)
    workers += pids(dropped)
    dropped.update_policy_weights_()
    batch = next(iter(dropped))
    del dropped
    gc.collect()
    assert_gone(workers)
    assert not [child for child in multiprocessing.active_children() if "distributed" in child.name]
    assert (batch["action"] == 0.5).all()  # what was handed over stays


def test_an_interrupt_ends_the_workers():
    subject = sabotaged(hang)
    workers = pids(subject)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="worker 1 did not end within 2 s"):
            list(subject)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert_gone(workers)


def test_workers_ignore_the_interrupt_that_the_terminal_sends_to_all_processes():
    with collector() as subject:
        for pid in pids(subject):
            os.kill(pid, signal.SIGINT)
        assert subject.rollout().batch_size == (2, 4)


LEARNER = """
import os, signal
from functools import partial
from rl_collectors import DistributedCollector
from rl_core.testing import CountingEnv

subject = DistributedCollector(
    partial(CountingEnv, length=5), num_collectors=1, frames_per_batch=8, launcher="manual", tcp_port={port},
    address="127.0.0.1", sync=False,
)
next(iter(subject))
os.kill(os.getpid(), signal.SIGKILL)
"""


def started(target, *args):
    """A process in which torch is imported already."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=args)
    process.start()
    return process


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_workers_end_when_their_learner_is_killed():
    port = free_port()
    learner = started(exec, LEARNER.format(port=port))
    worker = started(run_worker, "127.0.0.1", port, 1)
    learner.join(60)
    assert learner.exitcode == -signal.SIGKILL
    worker.join(15)
    assert worker.exitcode == 0


# ------------------------------------------------------------------------------------------------ other launchers
def test_workers_may_be_started_by_hand_in_any_order():
    port = free_port()
    address = ["--address", f"127.0.0.1:{port}", "--rank"]
    second, first = started(main, [*address, "2"]), started(main, [*address, "1"])
    with collector(
        [counting(2), counting(3)], launcher="manual", tcp_port=port, address="127.0.0.1", total_frames=16
    ) as subject:
        assert pids(subject) == [first.pid, second.pid]
        assert [batch["observation"][1, :3, 0].tolist() for batch in subject] == [[0, 1, 2], [1, 2, 0]]
    for worker in (first, second):
        worker.join(15)
        assert worker.exitcode == 0


def test_a_rank_belongs_to_one_worker():
    store, port = open_store("127.0.0.1", None, 2)
    other = join_store("127.0.0.1", port, 5.0)
    introduce(other, 2)
    with pytest.raises(CollectorError, match="another worker has rank 2 already"):
        introduce(store, 2)
    with pytest.raises(CollectorError, match="rank is 3; the learner wants 2 workers, of ranks 1 to 2"):
        introduce(other, 3)
    with pytest.raises(CollectorError, match=rf"no learner answers at 127.0.0.1:{(free := free_port())} within 0.2 s"):
        join_store("127.0.0.1", free, 0.2)


def test_workers_that_do_not_come_are_named():
    with pytest.raises(CollectorError, match=r"ranks 1, 2 did not connect to 127.0.0.1:\d+ within 0.2 s"):
        collector(launcher="manual", tcp_port=free_port(), address="127.0.0.1", start_timeout=0.2)


def test_workers_may_be_jobs_and_one_that_dies_is_named(tmp_path):
    given = {"cluster": "local", "folder": str(tmp_path), "timeout_min": 5}
    subject = collector(
        launcher="submitit", slurm_kwargs=given, address="127.0.0.1", num_collectors=1, num_workers_per_collector=2
    )
    workers = pids(subject)
    assert subject.rollout().batch_size == subject.rollout().batch_size == (2, 4)
    os.kill(workers[1], signal.SIGKILL)
    with pytest.raises(CollectorError, match=r"worker 1 \(rank 2 on .*\) died while collecting"):
        subject.rollout()
    assert_gone(workers)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"launcher": "mpi"}, "launcher is 'mpi'; it is one of 'local', 'submitit', 'manual'"),
        ({"launcher": "manual"}, "must know where to connect; pass tcp_port"),
        ({"slurm_kwargs": {}}, "slurm_kwargs are for launcher='submitit', not 'local'"),
        ({"backend": "nccl"}, "backend is 'nccl'"),
        ({"num_workers_per_collector": 0}, "at least one worker"),
        ({"num_collectors": None}, "num_collectors="),
        ({"create_env_fn": [CountingEnv] * 3}, "3 entries for 2 collectors of 1 workers"),
        ({"mp_start_method": "fork"}, "mp_start_method is for worker processes"),
    ],
)
def test_arguments_that_do_not_fit_are_named(given, told):
    given = {"create_env_fn": CountingEnv, "num_collectors": 2, **given}
    with pytest.raises(CollectorError, match=told):
        DistributedCollector(frames_per_batch=8, **given)


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CollectorError, match=rf"tcp_port={port} cannot be opened"):
            collector(tcp_port=port)


def test_an_address_without_a_port_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--address", "somewhere", "--rank", "1"])
    assert "not HOST:PORT" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ beside other things
def test_the_default_process_group_is_left_to_the_learner(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        learner = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        with collector(total_frames=16) as subject:
            for batch in subject:
                learner(batch["observation"].float()).mean().backward()
        one = torch.ones(1)
        distributed.all_reduce(one)
        assert one.item() == 1.0 and distributed.get_world_size() == 1
    finally:
        distributed.destroy_process_group()


def test_a_buffer_is_filled_in_the_background():
    class Buffer(list):
        def extend(self, data):
            self.append(data)

    buffer = Buffer()
    with collector(replay_buffer=buffer, total_frames=40) as subject:
        subject.start()
        subject._background._thread.join(20)
        subject.async_shutdown()
    assert sum(data.numel() for data in buffer) == 40


def test_one_process_and_many_give_the_same_trajectories():
    alone = Collector(counting(4)(), frames_per_batch=8, total_frames=16)
    with collector(counting(4), num_collectors=1, total_frames=16) as subject:
        for ours, reference in zip(subject, alone, strict=True):
            assert torch.equal(ours["observation"][0], reference["observation"])
            assert torch.equal(ours["collector", "traj_ids"][0], reference["collector", "traj_ids"])


def test_it_is_found_by_name():
    assert registry.collectors.get("distributed") is DistributedCollector
