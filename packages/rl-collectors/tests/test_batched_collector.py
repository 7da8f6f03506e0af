"""What a collector yields whose environments share one served policy, and how it ends."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import AsyncBatchedCollector, MultiSyncCollector
from rl_core import registry
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.policy_state import CarriedState, StateCarrier
from rl_core.specs import Unbounded
from rl_core.testing import ArrayCountingEnv, CollectorKit, CountingEnv
from rl_core.testing.collector_kit import constant_policy
from rl_core.testing.kit import overrides_check

ENVS = ["thread", "process"]


def batched(makers, policy=None, **kwargs):
    return AsyncBatchedCollector(makers, policy, **{"mp_start_method": "fork", **kwargs})


def counting(length=3, kind=ArrayCountingEnv, **kwargs):
    return partial(kind, length, **kwargs)


class TestThreads(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return batched(
            create_env_fn, policy, num_workers=2, frames_per_batch=frames_per_batch, total_frames=total_frames
        )

    @overrides_check(reason="threads share one generator, so which of them draws first is not the seed's to say")
    def test_the_same_seed_gives_the_same_batches(self) -> None:
        pass


class TestOneThread(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return batched([create_env_fn], policy, frames_per_batch=frames_per_batch, total_frames=total_frames)


class TestProcesses(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return batched(
            [create_env_fn] * 2, policy, frames_per_batch=frames_per_batch, total_frames=total_frames,
            backend="process",
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------ batches
@pytest.mark.parametrize("env_backend", ENVS)
@pytest.mark.parametrize("kind", [ArrayCountingEnv, CountingEnv])
@pytest.mark.parametrize("batch_size", [[], [2]])
def test_batches_are_those_of_workers_with_a_policy_each(env_backend, kind, batch_size):
    makers = [counting(2, kind, batch_size=batch_size), counting(3, kind, batch_size=batch_size)]
    options = {"frames_per_batch": 16, "total_frames": 40, "track_policy_version": True, "mp_start_method": "fork"}
    with (
        MultiSyncCollector(makers, constant_policy(0.5), **options) as reference,
        AsyncBatchedCollector(makers, constant_policy(0.5), env_backend=env_backend, **options) as collector,
    ):
        count = 0
        for ours, expected in zip(collector, reference, strict=True):
            assert ours.batch_size == expected.batch_size and ours.names == expected.names
            assert set(ours.keys(True, True)) == set(expected.keys(True, True)) and (ours == expected).all()
            for subject in (collector, reference):
                subject.update_policy_weights_(constant_policy(float(count)))
            count += 1
    assert count == 3 and collector.policy_version == 3 and len(collector) == 3


def test_environments_that_wait_share_a_call():
    with batched(
        [counting()] * 4, constant_policy(0.5), frames_per_batch=40, min_batch_size=4, server_timeout=1000.0
    ) as collector:
        collector.rollout()
        found = collector.stats()
    assert (found["server/batches"], found["server/rows"], found["server/batch_size_mean"]) == (10, 40, 4)
    assert (found["frames"], found["workers"], found["trajectories"]) == (40, 4, 16)


def test_random_frames_come_first_and_have_the_entries_of_the_others():
    policy = TensorDictModule(
        lambda x: (torch.full_like(x, 9.0), x + 1), in_keys=["observation"], out_keys=["action", "value"]
    )
    with batched(
        [counting()] * 2, policy, frames_per_batch=8, init_random_frames=8, track_policy_version=True
    ) as collector:
        collector.update_policy_weights_()
        first, second = collector.rollout(), collector.rollout()
    assert set(first.keys(True, True)) == set(second.keys(True, True))
    assert (first["value"] == 0).all() and (first["action"] != 9).all() and (second["action"] == 9).all()
    assert (first["policy_version"] == 1).all() and (second["policy_version"] == 1).all()
    assert collector.policy_version == 1


def test_random_actions_need_no_server():
    with batched([counting()] * 2, frames_per_batch=8, total_frames=8, track_policy_version=True) as collector:
        collector.update_policy_weights_()
        (batch,) = list(collector)
        assert collector.server is None and (batch["policy_version"] == 1).all()
        assert "server/rows" not in collector.stats()


@pytest.mark.parametrize("env_backend", ENVS)
def test_a_policy_of_bare_tensors(env_backend):
    with batched([counting()] * 2, nn.Identity(), frames_per_batch=8, env_backend=env_backend) as collector:
        batch = collector.rollout()
    assert torch.equal(batch["action"], batch["observation"])


@pytest.mark.parametrize("env_backend", ENVS)
def test_a_policy_keeps_its_memory_in_the_environment_of_its_rows(env_backend):
    class Remembering(CountingEnv):
        def __init__(self, length):
            super().__init__(length=length)
            self.observation_spec["hidden"] = Unbounded((1,))

        def _reset(self, tensordict=None, **kwargs):
            return super()._reset(tensordict, **kwargs).set("hidden", torch.zeros(1))

        def _step(self, tensordict):
            return super()._step(tensordict).set("hidden", tensordict["next", "hidden"].clone())

    class Memory(StateCarrier, nn.Module):
        in_keys, out_keys = ["hidden"], ["action", ("next", "hidden")]

        def carried_state(self):
            return CarriedState({"hidden": Unbounded(shape=(1,))}, [])

        def forward(self, td):
            return td.set("action", td["hidden"] * 0.1).set(("next", "hidden"), td["hidden"] + 1)

    makers = [partial(Remembering, length) for length in (3, 5, 4)]
    with batched(makers, Memory(), frames_per_batch=30, env_backend=env_backend) as collector:
        data = torch.cat([collector.rollout(), collector.rollout()], 1)
    assert torch.equal(data["hidden"], data["observation"])  # one more with each step, zero after a reset
    assert torch.allclose(data["action"], data["observation"] * 0.1)


def test_episodes_start_anew_where_that_is_asked():
    with batched([counting(99)] * 2, frames_per_batch=4) as collector:
        collector.rollout()
        collector.reset(1)
        batch = collector.rollout()
        assert batch["observation"].squeeze(-1).tolist() == [[2, 3], [0, 1]]
        assert batch["collector", "traj_ids"].tolist() == [[0, 0], [2, 2]]
        collector.reset()
        assert collector.rollout()["collector", "traj_ids"].tolist() == [[3, 3], [4, 4]]
        with pytest.raises(CollectorError, match="no worker 2; the workers are 0 to 1"):
            collector.reset([0, 2])
    with batched([counting(99)] * 2, frames_per_batch=4, reset_at_each_iter=True, env_backend="process") as collector:
        assert [int(collector.rollout()["observation"].max()) for _ in range(2)] == [1, 1]


def test_whole_trajectories_truncation_and_postproc():
    with batched([counting(3)] * 2, frames_per_batch=4, total_frames=24, trajs_per_batch=2) as collector:
        assert [batch.shape for batch in collector] == [torch.Size([2, 3])] * 4
    marked = [counting(99, truncate=True)] * 2
    with batched(marked, frames_per_batch=6, set_truncated=True, postproc=lambda td: td["next"]) as collector:
        assert collector.rollout()["truncated"].squeeze(-1).tolist() == [[False, False, True]] * 2
    with pytest.raises(CollectorError, match="set_truncated needs the end flag"):
        batched([counting()] * 2, frames_per_batch=6, set_truncated=True)


class Buffer:
    def __init__(self, enough):
        self.rows, self.enough, self.full = [], enough, threading.Event()

    def extend(self, batch):
        self.rows.append(batch)
        if len(self.rows) >= self.enough:
            self.full.set()


def test_a_buffer_is_filled_in_the_background():
    buffer = Buffer(3)
    with batched([counting()] * 2, constant_policy(0.5), frames_per_batch=8, replay_buffer=buffer) as collector:
        collector.start()
        assert buffer.full.wait(20)
        collector.update_policy_weights_(constant_policy(0.25))
        with collector.pause():
            buffer.full.clear()
            buffer.enough = len(buffer.rows) + 1
        assert buffer.full.wait(20)
        collector.async_shutdown()
    assert buffer.rows[0]["action"].unique().tolist() == [0.5]
    assert buffer.rows[-1]["action"].unique().tolist() == [0.25]


@pytest.mark.parametrize("env_backend", ENVS)
def test_a_resumed_collector_goes_on_where_it_was(env_backend):
    def make(policy):
        return batched([counting(5)] * 2, policy, frames_per_batch=8, total_frames=24, env_backend=env_backend)

    with make(constant_policy(0.5)) as first:
        first.update_policy_weights_(constant_policy(0.75))
        next(iter(first))
        state = first.state_dict()
        expected = list(first)
    with make(constant_policy(0.5)) as second:
        second.load_state_dict(state)
        assert second.policy_version == 1
        found = list(second)
    assert len(found) == 2 and all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_names_and_arguments():
    assert registry.collectors.get("async_batched") is AsyncBatchedCollector
    with pytest.raises(CollectorError, match="env_backend is 'ray'"):
        batched([counting()], frames_per_batch=2, env_backend="ray")
    with pytest.raises(CollectorError, match="does not divide by the 2 environments"):
        batched([counting()] * 2, frames_per_batch=3)
    with pytest.raises(CollectorError, match="batch sizes"):
        batched([counting(), counting(batch_size=[2])], frames_per_batch=4)
    with batched([counting()] * 2, constant_policy(0.5), frames_per_batch=4) as collector:
        assert collector.get_model() is collector.policy and "2 workers of ArrayCountingEnv" in repr(collector)
        with pytest.raises(KeyMissingError):
            collector.get_model("value")


def test_processes_that_are_not_forked_get_their_clients_by_pickling():
    with AsyncBatchedCollector(
        [lambda: ArrayCountingEnv(3)] * 2, constant_policy(0.5), frames_per_batch=8, backend="process"
    ) as collector:
        collector.update_policy_weights_(constant_policy(0.75))
        assert collector.rollout()["action"].unique().tolist() == [0.75]


# ------------------------------------------------------------------------------------------------ the end
class Saboteur(CountingEnv):
    """Does something at its fourth step, if it has something to do."""

    def __init__(self, deed=None):
        super().__init__(length=100)
        self.deed = deed

    def _step(self, tensordict):
        if self.deed is not None and self.count.item() >= 3:
            self.deed()
        return super()._step(tensordict)


def fail():
    raise ZeroDivisionError("the wheel came off")


@pytest.mark.parametrize("env_backend", ENVS)
def test_a_worker_that_fails_is_named(env_backend):
    makers = [Saboteur, partial(Saboteur, fail)]
    with batched(makers, constant_policy(0.5), frames_per_batch=20, env_backend=env_backend) as collector:
        with pytest.raises(CollectorError, match="worker 1 failed while collecting: ZeroDivisionError") as caught:
            collector.rollout()
        assert isinstance(caught.value.__cause__, ZeroDivisionError) and collector.closed
        with pytest.raises(CollectorError, match="this collector is shut down"):
            collector.rollout()
    with pytest.raises(CollectorError, match=r"worker 0 failed while building its environment.*no rope"):
        batched([partial(broken)], frames_per_batch=2)


def broken():
    raise OSError("no rope")


def test_a_worker_that_hangs_is_shown():
    stop = threading.Event()
    makers = [Saboteur, partial(Saboteur, stop.wait)]
    collector = batched(makers, constant_policy(0.5), frames_per_batch=20, timeout=0.2)
    with (
        pytest.warns(UserWarning, match=r"threads of workers \[1\] did not end"),
        pytest.raises(CollectorError, match=r"(?s)worker 1 made no progress for 0.2 s.*self\.deed\(\)"),
    ):
        collector.rollout()
    stop.set()


class Treacherous(nn.Module):
    def forward(self, observation):
        if (observation > 2).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return observation


class Wrong(nn.Module):
    def forward(self, observation):
        return observation @ torch.ones(3, 1)


@pytest.mark.parametrize("env_backend", ENVS)
def test_what_is_wrong_with_the_policy_is_told(env_backend):
    keys = {"in_keys": ["observation"], "out_keys": ["action"]}
    options = {"frames_per_batch": 20, "env_backend": env_backend}
    with (
        batched([counting(9)] * 2, TensorDictModule(Wrong(), **keys), **options) as collector,
        pytest.raises(CollectorError, match="the policy failed in the inference server while acting on"),
    ):
        collector.rollout()
    killed = batched([counting(9)] * 2, TensorDictModule(Treacherous(), **keys), policy_backend="process", **options)
    with killed as collector, pytest.raises(CollectorError, match="the inference server has ended: its process"):
        collector.rollout()


class Closing(CountingEnv):
    closed_in: list[str] = []

    def close(self, **kwargs):
        self.closed_in.append(threading.current_thread().name)
        super().close(**kwargs)


@pytest.mark.parametrize("policy", [None, constant_policy(0.5)])
def test_a_collector_that_nobody_holds_ends(policy):
    before = set(threading.enumerate())
    Closing.closed_in.clear()
    collector = batched([Closing] * 2, policy, frames_per_batch=4)
    collector.rollout()
    gone = weakref.ref(collector)
    del collector
    gc.collect()
    assert gone() is None and sorted(Closing.closed_in) == ["env-worker-0", "env-worker-1"]
    assert set(threading.enumerate()) <= before


def test_a_loop_that_breaks_leaves_no_thread():
    before = set(threading.enumerate())
    with batched([counting()] * 3, constant_policy(0.5), frames_per_batch=6) as collector:
        for _ in collector:
            break
    collector.shutdown()
    assert set(threading.enumerate()) <= before
