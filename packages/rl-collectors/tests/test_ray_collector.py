"""RayCollector: the batches of collectors with worker processes, from Ray actors; and what happens when one dies."""

import os
import pickle
import runpy
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import ray
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import MultiSyncCollector, RayCollector, RayWeightSyncScheme, SharedMemWeightSyncScheme
from rl_collectors.process.settings import WorkerSettings
from rl_collectors.process.worker import Gathered, Order
from rl_collectors.ray import library
from rl_collectors.ray.actor import CollectorActor
from rl_collectors.ray.cluster import in_bytes, start_ray
from rl_collectors.ray.handover import HandoverSettings
from rl_collectors.ray.hire import Hire
from rl_collectors.ray.member import Asked, RayMember
from rl_collectors.ray.telling import cause_of_death
from rl_collectors.ray.travel import Chunks, SentTensor
from rl_core.collectors import WeightSync
from rl_core.errors import CollectorError, KeyMissingError, PluginNotInstalledError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_core.testing.collector_kit import constant_policy


@pytest.fixture(scope="module", autouse=True)
def embedded_ray():
    start_ray({"num_cpus": 2, "include_dashboard": False, "log_to_driver": False})
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test file
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


MAKERS = [partial(ArrayCountingEnv, 2), partial(ArrayCountingEnv, 3)]


class ObedientEnv(CountingEnv):
    """Does in its step what a file tells it to."""

    def __init__(self, file):
        super().__init__(length=3)
        self.file = file

    def _step(self, tensordict):
        match self.file.read_text():
            case "raise":
                raise ValueError("the counter broke")
            case "exit":
                os._exit(3)
            case "exit once":
                self.file.write_text("")
                os._exit(3)
            case "sleep":
                threading.Event().wait()
        return super()._step(tensordict)


class Level(nn.Module):
    """Puts out its one weight, in memory of its own."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        return self.level + 0.0 * observation


def level_policy(level):
    return levels(TensorDictModule(Level(), ["observation"], ["action"]), level)


def levels(policy, level):
    with torch.no_grad():
        next(policy.parameters()).fill_(level)
    return policy


@pytest.fixture(scope="module")
def pair():
    """Two actors for the tests that leave them usable."""
    policy = constant_policy(0.25)
    collector = RayCollector(
        MAKERS, policy, frames_per_batch=8, track_policy_version=True, restart=1, set_truncated=False
    )
    with collector:
        yield collector


# ------------------------------------------------------------------------------------------------ what it yields
def test_batches_equal_those_of_worker_processes(pair):
    pair.reset()
    arguments = {"frames_per_batch": 8, "total_frames": 24, "track_policy_version": True, "mp_start_method": "fork"}
    found = [pair.next() for _ in range(3)]
    for ours, theirs in zip(found, MultiSyncCollector(MAKERS, constant_policy(0.25), **arguments), strict=True):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True)) and ours.names == theirs.names
        assert (ours == theirs).all() and ours.batch_size == (2, 4) and ours.device is None
    assert (pair.frames, pair.iteration, pair.closed, pair.num_collectors) == (24, 3, False, 2)
    before = found[0].clone()
    found[1].zero_()  # a batch is the reader's
    assert (found[0] == before).all() and (pair.rollout()["observation"] >= 0).all()


def test_every_actor_acts_with_the_new_weights_and_echoes_their_version(pair):
    policy = pair.get_model()
    first = pair.policy_version
    pair.update_policy_weights_(levels(policy, 0.75))
    batch = pair.rollout()
    assert (batch["action"] == 0.75).all() and (batch["policy_version"] == first + 1).all()
    pair.update_policy_weights_(constant_policy(-0.5), worker_ids=[1])
    batch = pair.rollout()
    assert (batch["action"][0] == 0.75).all() and (batch["action"][1] == -0.5).all()
    assert batch["policy_version"].tolist() == [[first + 1] * 4, [first + 2] * 4]
    with pytest.raises(CollectorError, match=r"(?s)worker 0 failed while taking new weights.*they lack 'module.level'"):
        pair.update_policy_weights_({"level": torch.zeros(())})
    with pytest.raises(CollectorError, match="there is no worker 2"):
        pair.update_policy_weights_(worker_ids=[2])
    with pytest.raises(KeyMissingError, match="'critic', only for 'policy'"):
        pair.update_policy_weights_(policy, model_id="critic")
    assert (pair.rollout()["action"][0] == 0.75).all()  # a refusal leaves the actors as they were


def test_weights_are_put_into_the_object_store_once(pair, monkeypatch):
    put, puts = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    pair.update_policy_weights_()
    assert len(puts) == 1 and isinstance(RayWeightSyncScheme(), WeightSync)


@pytest.mark.parametrize(
    ("settings", "sent"), [({"_max_interval": 2}, [0, 0, 1, 1, 2]), ({"_update_after": True}, [0, 1, 2, 3, 4])]
)
def test_weights_are_sent_after_so_many_batches(pair, monkeypatch, settings, sent):
    pair.update_policy_weights_()
    version = pair.policy_version
    pair._engine._had_last = ()
    for name, value in settings.items():
        monkeypatch.setattr(pair._engine, name, value)
    assert [int(pair.next()["policy_version"].unique()) - version for _ in sent] == sent


def test_a_state_and_a_seed_bring_the_same_batches_back(pair):
    state = pair.state_dict()
    expected = [pair.rollout() for _ in range(2)]
    pair.update_policy_weights_(constant_policy(0.125))
    pair.load_state_dict(state)
    for batch in expected:
        assert (pair.rollout() == batch).all()
    assert pair.set_seed(3) == pair.set_seed(3) != pair.set_seed(4) and pair.set_seed(3, static_seed=True) == 3
    with pytest.raises(CollectorError, match="the state is of 1 workers, this collector has 2"):
        pair.load_state_dict({**state, "workers": state["workers"][:1]})


def test_a_killed_actor_is_started_anew_with_the_current_weights(pair):
    pair.reset()
    version, before = pair.policy_version, pair.rollout()
    assert before["observation"][1].flatten().tolist() == [0, 1, 2, 0]
    ray.kill(pair.actors[1])
    with pytest.warns(RuntimeWarning, match=r"worker 1 \(Ray actor .* on node .*\) died .*killed by `ray.kill`"):
        pair.update_policy_weights_(levels(pair.get_model(), 1.0))
    batch = pair.rollout()
    assert (batch["action"] == 1.0).all() and (batch["policy_version"] == version + 1).all()
    assert batch["observation"][1].flatten().tolist() == [0, 1, 2, 0]  # a new episode, with a new id
    assert batch["collector", "traj_ids"][1].min() > before["collector", "traj_ids"].max()
    assert pair.restarts == 1 and pair.frames_lost == 0 == pair.stats()["frames_lost"]  # it waited when it died
    actors = pair.actors
    ray.kill(actors[0])
    with pytest.raises(CollectorError, match=r"worker 0 \(Ray actor .*killed by `ray.kill`"):
        pair.rollout()  # restart=1
    assert pair.closed
    with pytest.raises(CollectorError, match="shut down"):
        pair.rollout()
    for actor in actors:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.progress.remote())  # nothing is left
    pair.shutdown()


# ------------------------------------------------------------------------------------------------ asynchronous
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread prints it, too
@pytest.mark.filterwarnings("ignore:worker 0 .* died while collecting:RuntimeWarning")
@pytest.mark.parametrize(
    ("order", "told"),
    [
        ("exit", r"worker 0 \(Ray actor \w+, process \d+ on node \w+ \(.*\)\) died while collecting"),
        ("sleep", r"(?s)worker 0 .* made no progress for 2 s while collecting. Where it is:.*threading.Event\(\)"),
    ],
)
def test_weights_arrive_between_two_steps_and_an_end_is_told_within_seconds(tmp_path, order, told):
    file = tmp_path / "order"
    file.write_text("")
    policy, rows = level_policy(0.0), []

    class Rows:
        def extend(self, batch):
            rows.append(batch)

    collector = RayCollector(
        partial(ObedientEnv, file), policy, sync=False, frames_per_batch=50, replay_buffer=Rows(),
        track_policy_version=True, timeout=2.0, restart=int(order == "exit"),
    )  # fmt: skip

    def see(batches):
        seen = len(rows)
        while len(rows) < seen + batches and collector.is_running:
            time.sleep(0.01)

    collector.start()
    for level in (1.0, 2.0):
        collector.update_policy_weights_(levels(policy, level))
        see(4)
    if order == "exit":
        file.write_text("exit once")
        while not collector.restarts and collector.is_running:
            time.sleep(0.01)
        see(4)
        assert collector.restarts == 1 and collector.stats()["frames_lost"] == 50
    assert torch.equal(rows[-1]["action"].flatten(), torch.full((50,), 2.0)) and rows[-1].batch_size == (50,)
    for batch in rows:
        assert torch.equal(batch["action"].flatten(), batch["policy_version"].float())  # never in the middle of a call
        assert torch.equal(batch["next", "observation"], batch["observation"] + 1) and len(batch) == 50
    start = time.monotonic()
    file.write_text(order)
    while collector.is_running:
        time.sleep(0.01)
    with pytest.raises(CollectorError, match=told):
        collector.async_shutdown()
    assert collector.closed and time.monotonic() - start < 30


def test_actors_write_into_a_buffer_that_is_an_actor_itself():
    @ray.remote
    class Rows:
        def __init__(self):
            self.rows = []

        def extend(self, rows):
            if len(self.rows) == 3:
                raise OSError("the disk is full")
            self.rows.append(rows)

        def all(self):
            return self.rows

    class Client:
        def __init__(self, actor):
            self.actor = actor

        def extend(self, batch):
            ray.get(self.actor.extend.remote(batch.to_dict()))

        def client(self):
            return self

    buffer = Client(Rows.remote())
    collector = RayCollector(
        partial(ArrayCountingEnv, 3), constant_policy(0.5), sync=False, frames_per_batch=8, total_frames=28,
        replay_buffer=buffer, track_policy_version=True, postproc=lambda batch: batch.set("seen", batch["action"] * 2),
        update_after_each_batch=True,
    )  # fmt: skip
    with pytest.raises(CollectorError, match="the actors hand theirs to the buffer"):
        collector.rollout()
    for batches in range(3):
        assert collector.next() is None and collector.frames == 8 * (batches + 1)
    parts = ray.get(buffer.actor.all.remote())
    assert [len(part["action"]) for part in parts] == [8, 8, 8]
    assert all((part["seen"] == 1.0).all() for part in parts)
    assert torch.cat([part["collector"]["traj_ids"] for part in parts]).tolist() == [k // 3 for k in range(24)]
    assert parts[0]["policy_version"].tolist() == [0] * 8 and collector.policy_version == 2
    told = r"(?s)worker 0 failed while handing its batch to the buffer: .*the disk is full.*in extend"
    with pytest.raises(CollectorError, match=told):
        next(iter(collector))
    assert collector.closed


# ------------------------------------------------------------------------------------------------ the actor, here
def begun(actor, *, policy=None, handover=None, workers=1, **kwargs):
    scheme = RayWeightSyncScheme()
    settings = WorkerSettings(
        0, kwargs.pop("create_env_fn", MAKERS[1]), None, None, kwargs.pop("collector_class", _collector()),
        {"frames_per_batch": 4, "rounding": "up", **kwargs}, 0, receivers={"policy": scheme.receiver()},
    )  # fmt: skip
    return actor.begin(*map(pickle_by_value, (settings, policy, handover)), workers, 1, 0, 60.0)


def _collector():
    from rl_collectors import Collector

    return Collector


def pickle_by_value(value):
    return in_bytes(value, "it")


def parts_of(policy):
    (parts,) = RayWeightSyncScheme()._parts(dict(policy.state_dict()), [None])
    return [part if isinstance(part, bytes) else ray.get(part) for part in parts]


def test_an_actor_tells_what_it_is_and_replies_to_every_order():
    actor = CollectorActor(0)
    kind, facts, where = begun(actor, policy=constant_policy(0.5))
    assert (kind, facts.batch_size, facts.name) == ("ready", (), "ArrayCountingEnv") and "process" in where
    kind, sent = actor.gather(0, Order(1, 10))
    assert kind == "batch" and sent.gathered == Gathered(Order(1, 10), 10, [(0, 0)])
    assert sent.views()["observation"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert actor.take_weights("policy", 4, *parts_of(constant_policy(0.75))) == ("taken", None)
    kind, failure = actor.take_weights("policy", 5, *parts_of(nn.Linear(1, 1)))
    assert kind == "refused" and "it has no 'weight'" in failure.summary
    kind, sent = actor.gather(0, Order(2, 4, reset=True))
    assert (sent.views()["action"] == 0.75).all() and sent.gathered.versions == [(0, 4)]
    assert sent.views()["observation"].flatten().tolist() == [0, 1, 2, 0]
    assert actor.seed(3) == ("done", None) and actor.state()[1]["version"] == 4 and actor.progress()[1] == "waiting"
    assert actor.load(actor.state()[1]) == ("done", None)
    actor.cut(3)
    _, sent = actor.gather(0, Order(3, 10))  # looks every 4 frames
    assert sent.gathered.steps == 4 and sent.views()["observation"].shape == (10, 1)
    assert "MainThread" in run_beside(actor.whereabouts)
    actor.stop()
    assert actor.gather(0, Order(4, 4)) == ("stopped",) and actor.close() == ("done", None)


def run_beside(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(60)
    return found[0]


def test_weights_wait_for_the_gap_between_two_policy_calls():
    actor = CollectorActor(0)
    taken, arrived = threading.Event(), []

    class Slow(CountingEnv):
        def _step(self, tensordict):
            if not taken.is_set():
                arrived.append(threading.Thread(target=take))
                arrived[-1].start()
                taken.set()
                while not actor.requests:
                    time.sleep(1e-3)
            return super()._step(tensordict)

    def take():
        arrived.append(actor.take_weights("policy", 1, *parts_of(level_policy(0.75))))

    actor.receivers = {"policy": RayWeightSyncScheme().receiver()}
    from rl_collectors.process.worker import CollectorWorker

    settings = WorkerSettings(
        0, lambda: Slow(length=3), level_policy(0.25), None, _collector(), {"frames_per_batch": 4}, 0
    )
    actor.worker = CollectorWorker(settings, actor.control, actor._attend)
    _, sent = actor.gather(0, Order(1, 4))
    arrived[0].join(60)
    assert arrived[1] == ("taken", None) and sent.gathered.versions == [(0, 0), (1, 1)]
    assert sent.views()["action"].flatten().tolist() == [0.25, 0.75, 0.75, 0.75]


def test_an_actor_with_processes_of_its_own_collects_for_all_of_them():
    actor = CollectorActor(0)
    kind, facts, _ = begun(actor, policy=constant_policy(0.5), workers=2, frames_per_batch=8)
    assert kind == "ready" and facts.batch_size == (2,)
    _, sent = actor.gather(0, Order(1, 4))
    assert sent.views()["observation"].squeeze(-1).tolist() == [[0, 1, 2, 0]] * 2
    assert actor.take_weights("policy", 2, *parts_of(constant_policy(0.75))) == ("taken", None)
    _, sent = actor.gather(0, Order(2, 2, reset=True))
    assert (sent.views()["action"] == 0.75).all() and sent.gathered.versions == [(0, 2)]
    assert sent.views()["observation"].squeeze(-1).tolist() == [[0, 1]] * 2
    _, sent = actor.gather(0, Order(3, 2, random=True))
    assert not (sent.views()["action"] == 0.75).any()
    kind, state = actor.state()
    assert kind == "done" and actor.load(state) == ("done", None) and actor.seed(1) == ("done", None)
    assert actor.progress()[0] > 0 and actor.close() == ("done", None)


def test_an_exception_of_the_environment_is_told_with_its_traceback(tmp_path):
    actor = CollectorActor(1)
    (tmp_path / "order").write_text("raise")
    begun(actor, policy=constant_policy(0.5), create_env_fn=partial(ObedientEnv, tmp_path / "order"))
    kind, failure = actor.gather(0, Order(1, 4))
    assert kind == "failed" and "in _step" in failure.trace
    assert str(failure.error()).startswith("worker 1 failed while collecting: ValueError: the counter broke")


def test_an_environment_that_cannot_be_made_is_told():
    def broken():
        raise OSError("no such simulator")

    kind, failure = begun(CollectorActor(3), create_env_fn=broken)
    assert kind == "failed" and failure.worker == 3
    assert str(failure.error()).startswith(
        "worker 3 failed while building its environment and policy: OSError: no such simulator"
    )


def test_a_handover_numbers_trajectories_by_worker_and_gives_whole_ones():
    kept = []

    class Rows:
        def extend(self, rows):
            kept.append(rows.clone())

        def client(self):
            return self

    delivery = {"trajs_per_batch": 1, "traj_format": "padded"}
    handover = HandoverSettings(Rows(), delivery, 4, True, False, False)
    actor = CollectorActor(2)
    begun(actor, policy=constant_policy(0.5))
    from rl_collectors.ray.handover import Handover

    actor.handover = Handover(handover, 2, actor.worker.facts, first_id=5)
    assert actor.gather(0, Order(1, 4))[1].next_id == 7 and actor.gather(0, Order(2, 3))[1].tensors == {}
    assert [part["observation"].flatten().tolist() for part in kept] == [[0, 1, 2]] * 2
    assert [part["collector", "traj_ids"].tolist() for part in kept] == [[5 * 4 + 2] * 3, [6 * 4 + 2] * 3]


# ------------------------------------------------------------------------------------------------ parts
def test_tensors_of_every_kind_travel():
    for tensor in (torch.arange(6.0).reshape(2, 3).T, torch.tensor([True, False]), torch.zeros(2, 0),
                   torch.ones(3, dtype=torch.bfloat16), torch.tensor(3)):  # fmt: skip
        found = pickle.loads(pickle.dumps(SentTensor.of(tensor))).tensor()
        assert torch.equal(found, tensor) and found.dtype == tensor.dtype
    frozen = np.arange(4, dtype=np.uint8)
    frozen.flags.writeable = False  # as Ray hands arrays over
    SentTensor(torch.uint8, (4,), frozen).tensor().zero_()
    assert frozen.tolist() == [0, 1, 2, 3]


def test_chunks_must_have_the_same_entries():
    chunks = Chunks()
    chunks.store(TensorDict({"a": torch.zeros(2)}, [2]), 0, 4)
    chunks.store(TensorDict({"a": torch.zeros(2), "b": torch.zeros(2)}, [2]), 2, 4)
    with pytest.raises(CollectorError, match="the entries b are in some steps"):
        chunks.joined()


def test_the_cause_of_a_death_is_told_without_guesses():
    text = "The actor died.\n\tclass_name: A\nThe actor is dead because it left. Some common causes include: (1) a"
    assert cause_of_death(ValueError(text)) == "The actor is dead because it left"
    assert cause_of_death(ValueError("gone")) == "gone" and cause_of_death(ValueError()) == "ValueError"


def test_frames_under_way_are_those_of_the_first_order():
    member = RayMember(0, b"", {}, 0, rows=2)
    assert member.frames_under_way == 0 and member.phase == "waiting"
    member.pending.extend(
        Asked(("gather", slot, Order(1, steps)), "collecting", None) for slot, steps in [(0, 5), (1, 9)]
    )
    assert member.frames_under_way == 10 and member.phase == "collecting"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"num_collectors": 3}, "2 entries, num_workers is 3"),
        ({"num_workers_per_collector": 0}, "at least one worker"),
        ({"restart": -1}, "restart is -1"),
        ({"weight_sync_schemes": {"policy": SharedMemWeightSyncScheme()}}, "share no memory"),
        ({"mp_start_method": "fork"}, "mp_start_method is an argument of collectors with worker processes"),
        ({"num_workers": 2}, "num_collectors counts the actors here"),
        ({"num_workers_per_collector": 2, "preemptive_threshold": 0.5}, "preemptive_threshold cuts"),
        ({"remote_configs": {"max_restarts": 1}}, "'max_restarts', which the collector sets itself"),
        ({"remote_configs": [{}]}, "1 values .* are given for 2 workers"),
        ({"policy_factory": threading.Lock().acquire}, "policy_factory cannot be sent to a Ray actor"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments, told):
    with pytest.raises(CollectorError, match=told):
        RayCollector(MAKERS, frames_per_batch=8, **arguments)


def test_how_often_actors_are_started_anew():
    assert [Hire(restart=True).may_restart(9), Hire(restart=False).may_restart(0)] == [True, False]
    assert [Hire(restart=2).may_restart(count) for count in range(3)] == [True, True, False]
    assert Hire(remote_configs={"num_cpus": 2}).options(2) == [{"num_cpus": 2}] * 2


def test_resources_that_are_not_there_are_named(monkeypatch):
    monkeypatch.setattr("rl_collectors.ray.pool._START_SECONDS", 0.1)
    monkeypatch.setattr("rl_collectors.ray.telling._TRACE_SECONDS", 0.1)
    with pytest.raises(CollectorError, match=r"(?s)not started worker 0 within 0.1 s: .*'robots': 1.*Ask for less"):
        RayCollector(MAKERS, frames_per_batch=8, remote_configs={"resources": {"robots": 1}}, timeout=0.1)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PluginNotInstalledError, match=r"pip install .*rl-collectors\[ray\]"):
        runpy.run_path(library.__file__)


def test_ray_that_runs_is_used_and_left_running():
    assert start_ray({"address": "nowhere"}) is False and ray.is_initialized()
