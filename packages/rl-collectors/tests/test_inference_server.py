"""One policy for many clients: who gets which rows, in which batch, under which weights, and what goes wrong."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collectors import (
    Collector,
    InferenceServer,
    MultiProcessWeightSyncScheme,
    MultiSyncCollector,
    PolicyClientModule,
)
from rl_collectors.inference.queueing import RequestQueue
from rl_collectors.inference.remote_link import MAX_IN_FLIGHT
from rl_collectors.inference.requests import Request
from rl_collectors.inference.stats import InferenceStats
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.exploration import ExplorationType, exploration_type, set_exploration_type
from rl_core.policy_state import CarriedState, StateCarrier, carried_state
from rl_core.specs import Unbounded
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_core.testing.collector_kit import constant_policy

BACKENDS = [{}, {"backend": "process", "mp_start_method": "fork"}]
SOON = 20.0  # seconds that nothing here should take


class Scale(nn.Module):
    """Multiplies by its one weight."""

    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, observation):
        if (observation < -900).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (observation < 0).any():
            raise ZeroDivisionError("a negative observation")
        return observation * self.factor


def doubling():
    return TensorDictModule(Scale(), in_keys=["observation"], out_keys=["action"])


def request(*values):
    return TensorDict({"observation": torch.tensor(values).unsqueeze(-1)}, [len(values)])


class Gate:
    """A policy that stands still in its first call until it is let go, and notes its batches."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()
        self.batches = []

    def __call__(self, td):
        self.batches.append(td["observation"].flatten().tolist())
        if len(self.batches) == 1:
            self.entered.set()
            assert self.go.wait(SOON)
        return td.set("action", td["observation"] * 2)


def waiting_batches(requests, **options):
    """The batches of requests that come while the policy is busy with another one."""
    gate = Gate()
    with InferenceServer(gate, **options) as server:
        first = server.client().submit(request(0.0))
        assert gate.entered.wait(SOON)
        futures = [client.submit(td) for client, td in ((server.client(), td) for td in requests)]
        gate.go.set()
        answers = [future.result(SOON)["action"] for future in futures]
        first.result(SOON)
    for td, action in zip(requests, answers, strict=True):
        assert torch.equal(action, td["observation"] * 2) and action.shape[:-1] == td.batch_size
    return gate.batches[1:]


# ------------------------------------------------------------------------------------------------ batches
def test_requests_that_wait_share_a_call_and_get_their_rows_back():
    assert waiting_batches([request(1.0, 2.0), request(3.0), request(4.0, 5.0)]) == [[1, 2, 3, 4, 5]]


def test_a_batch_has_at_most_so_many_rows_and_a_request_is_not_split():
    sizes = [request(1.0, 1.0), request(2.0, 2.0), request(3.0), request(4.0, 4.0, 4.0, 4.0)]
    assert waiting_batches(sizes, max_batch_size=3) == [[1, 1, 3], [2, 2], [4, 4, 4, 4]]


def test_requests_of_any_batch_size_are_joined():
    bare = TensorDict({"observation": torch.tensor([1.0])}, [])
    square = TensorDict({"observation": torch.arange(2.0, 6.0).reshape(2, 2, 1)}, [2, 2])
    none = TensorDict({"observation": torch.zeros(0, 1)}, [0])
    assert waiting_batches([bare, square, none]) == [[1, 2, 3, 4, 5]]


def test_requests_that_cannot_be_joined_come_into_batches_of_their_own():
    wide = TensorDict({"observation": torch.tensor([[7.0, 8.0]])}, [1])
    whole = TensorDict({"observation": torch.tensor([[9]])}, [1])
    more = request(6.0).set("hint", torch.zeros(1))
    found = waiting_batches([request(1.0), wide, whole, more, request(2.0)])
    assert found == [[1, 2], [7, 8], [9], [6]]


def queued(*entries, **options):
    """Batches of (sender, rows, dtype), as names "sender:number"."""
    queue = RequestQueue(**options)
    found = []
    for number, (sender, rows, dtype) in enumerate(entries):
        waiting = Request(sender, {"x": torch.full((rows,), number, dtype=dtype)}, rows, since=0.0)
        queue.put(waiting)
    while queue._waiting:
        found.append([f"{each.sender}:{int(each.tensors['x'][0])}" for each in queue.take()])
    return found


def test_no_sender_is_overtaken_by_itself():
    f, i = torch.float32, torch.int64
    assert queued(("a", 1, f), ("b", 1, i), ("b", 1, f), ("c", 1, f)) == [["a:0", "c:3"], ["b:1"], ["b:2"]]
    assert queued(("a", 2, f), ("b", 2, f), ("b", 1, f), max_rows=3) == [["a:0"], ["b:1", "b:2"]]


def test_a_batch_waits_for_enough_rows():
    gate = Gate()
    gate.go.set()
    with InferenceServer(gate, min_batch_size=3, timeout=1000.0) as server:
        first, second = server.client().submit(request(1.0)), server.client().submit(request(2.0))
        assert not first.done() and not second.done()
        server.client()(request(3.0))
        assert first.done() and second.done()
    assert gate.batches == [[1, 2, 3]]


def test_a_batch_waits_no_longer_than_its_timeout():
    with InferenceServer(doubling(), min_batch_size=2, timeout=0.001) as server:
        assert server.client()(request(3.0))["action"].item() == 6


def test_numbers_that_make_no_sense_are_errors():
    for wrong in ({"max_batch_size": 0}, {"min_batch_size": 3, "max_batch_size": 2}, {"timeout": -1.0}):
        with pytest.raises(CollectorError, match=r"min_batch_size|timeout=-1"):
            InferenceServer(doubling(), **wrong)
    for wrong in ({}, {"policy": doubling(), "policy_factory": doubling}):
        with pytest.raises(CollectorError, match="pass a policy or a policy_factory"):
            InferenceServer(**wrong)
    with pytest.raises(CollectorError, match="backend is 'ray'"):
        InferenceServer(doubling(), backend="ray")
    with pytest.raises(CollectorError, match="copies weights itself"):
        InferenceServer(doubling(), weight_sync=MultiProcessWeightSyncScheme())


# ------------------------------------------------------------------------------------------------ clients
@pytest.mark.parametrize("options", BACKENDS)
def test_many_threads_with_requests_of_many_sizes_get_their_own_rows(options):
    def work(seed):
        numbers = torch.Generator().manual_seed(seed)
        for _ in range(40):
            rows = int(torch.randint(0, 5, (), generator=numbers))
            td = TensorDict({"observation": torch.rand(rows, 3, generator=numbers)}, [rows])
            if not torch.equal(client(td)["action"], td["observation"] * 2):
                return False
        return True

    with InferenceServer(doubling(), max_batch_size=8, **options) as server, ThreadPoolExecutor(8) as threads:
        client = server.client()
        assert all(threads.map(work, range(8)))
        assert server.stats()["requests"] == 320


@pytest.mark.parametrize("options", BACKENDS)
def test_a_client_has_many_requests_under_way_and_gets_them_in_order(options):
    count = MAX_IN_FLIGHT + 10
    with InferenceServer(doubling(), **options) as server:
        client = server.client()
        futures = [client.submit(request(float(number))) for number in range(count)]
        last = futures[-1].result(SOON)
        assert all(future.done() for future in futures)  # those before the last one
        assert [future.result()["action"].item() for future in futures] == [2.0 * n for n in range(count)]
        assert futures[-1].result() is last


@pytest.mark.parametrize("options", BACKENDS)
def test_state_that_a_policy_carries_stays_with_its_rows(options):
    def total(td):  # a memory of all it has seen
        return td.set(("next", "h"), td["h"] + td["observation"]).set("action", td["h"])

    def walk(start, rows):
        td = TensorDict({"observation": torch.full((rows, 1), start), "h": torch.zeros(rows, 1)}, [rows])
        for step in range(20):
            client(td)
            if not torch.equal(td["action"], torch.full((rows, 1), start * step)):
                return False
            td["h"] = td["next", "h"]
        return True

    with InferenceServer(total, **options) as server, ThreadPoolExecutor(6) as threads:
        client = server.client()
        assert all(threads.map(walk, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 2, 3, 1, 2, 3]))


class Memory(TensorDictModule, StateCarrier):
    def __init__(self):
        super().__init__(lambda x, h: (x, x + h), in_keys=["observation", "h"], out_keys=["action", ("next", "h")])

    def carried_state(self):
        return CarriedState({"h": Unbounded((1,))}, ["is_init"])


@pytest.mark.parametrize("options", BACKENDS)
def test_a_client_says_what_the_policy_says_of_itself(options):
    with InferenceServer(Memory(), policy_version_key="policy_version", **options) as server:
        client = server.client()
        assert client.in_keys == ["observation", "h"]
        assert client.out_keys == ["action", ("next", "h"), "policy_version"]
        for subject in (client, PolicyClientModule(client), nn.Sequential(PolicyClientModule(client))):
            assert carried_state(subject).specs.keys() == {"h"} and carried_state(subject).init_keys == ["is_init"]


def test_a_client_is_a_module_among_others():
    before = TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["observation"])
    with InferenceServer(doubling()) as server:
        policy = TensorDictSequential(before, PolicyClientModule(server.client()))
        td = policy(TensorDict({"x": torch.ones(2, 1)}, [2]))
        assert td["action"].flatten().tolist() == [4, 4] and list(policy.parameters()) == []
        renamed = PolicyClientModule(server.client(), out_keys=["action"])
        assert renamed(request(3.0))["action"].item() == 6
    with (
        InferenceServer(lambda td: td) as server,
        pytest.raises(CollectorError, match="pass in_keys and out_keys"),
    ):
        PolicyClientModule(server.client())


def test_a_client_travels_if_it_is_made_for_it():
    with InferenceServer(doubling()) as server:
        with pytest.raises(CollectorError, match=r"server.client\(remote=True\)"):
            pickle.dumps(server.client())
        client = pickle.loads(pickle.dumps(server.client(remote=True)))
        assert client(request(1.0, 2.0))["action"].flatten().tolist() == [2, 4]
        assert copy.deepcopy(client) is client


def forked(work):
    """What ``work()`` returns in a forked process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=lambda: there.send(work()))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(SOON) else "nothing"
    except EOFError:
        return "the end"
    finally:
        process.join(SOON)


def test_clients_in_other_processes():
    with InferenceServer(doubling(), backend="process", mp_start_method="fork") as server:
        client = server.client()
        assert client(request(1.0))["action"].item() == 2  # a connection that the fork must not use
        assert forked(lambda: client(request(2.0))["action"].item()) == 4
        assert client(request(3.0))["action"].item() == 6


def test_a_forked_client_of_threads_says_what_to_do():
    def ask():
        try:
            client(request(1.0))
        except CollectorError as error:
            return str(error)

    with InferenceServer(doubling()) as server:
        client = server.client()
        assert "server.client(remote=True)" in forked(ask)


def test_a_client_that_is_gone_leaves_the_server_alive():
    def leave():
        client.submit(request(5.0))
        os._exit(0)

    with InferenceServer(doubling(), backend="process", mp_start_method="fork") as server:
        client = server.client()
        for _ in range(3):
            assert forked(leave) == "the end"
        assert client(request(1.0))["action"].item() == 2


def test_a_stranger_is_not_served():
    with InferenceServer(doubling()) as server:
        client = server.client(remote=True)
        wrong = copy.copy(client.link.address)
        object.__setattr__(wrong, "token", b"0" * 32)
        stranger = server.client(remote=True)
        stranger.link.address = wrong
        with pytest.raises(CollectorError, match="has ended"):
            stranger(request(1.0))
        assert client(request(1.0))["action"].item() == 2


@pytest.mark.parametrize("options", BACKENDS)
def test_a_client_is_the_policy_of_collectors(options):
    makers = [lambda: ArrayCountingEnv(3)] * 2
    with InferenceServer(doubling(), policy_version_key="policy_version", **options) as server:
        for collector in (
            Collector(makers[0], server.client(), frames_per_batch=8),
            MultiSyncCollector(makers, server.client(remote=True), frames_per_batch=8, mp_start_method="fork"),
        ):
            with collector:
                batch = collector.rollout()
                assert torch.equal(batch["action"], batch["observation"] * 2)
                server.update_policy_weights_(doubling())
                batch = collector.rollout()
                assert (batch["policy_version"] == server.policy_version).all()


def test_a_server_that_has_ended_refuses_clients_though_a_fork_holds_its_socket():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    server = InferenceServer(doubling(), answer_timeout=SOON).start()
    clients = [server.client(remote=True), server.client(remote=True)]
    clients[0](request(1.0))
    child = context.Process(target=there.recv)
    child.start()
    server.shutdown()
    for client in clients:
        with pytest.raises(CollectorError, match="it was shut down"):
            client(request(1.0))
    here.send("enough")
    child.join(SOON)


# ------------------------------------------------------------------------------------------------ the policy
@pytest.mark.parametrize("options", BACKENDS)
def test_a_policy_without_keys_gets_all_entries_and_what_it_changes_comes_back(options):
    def policy(td):
        td["mask"].fill_(True)
        return td.set("action", td["group", "x"] + td["observation"]).set(("out", "y"), td["observation"])

    td = request(1.0, 2.0).set("group", TensorDict({"x": torch.ones(2, 1)}, [2])).set("mask", torch.zeros(2, 1))
    with InferenceServer(policy, **options) as server:
        mask = td["mask"]
        server.client()(td)
    assert td["action"].flatten().tolist() == [2, 3] and td["out", "y"].flatten().tolist() == [1, 2]
    assert td["mask"].flatten().tolist() == [1, 1] and mask.sum() == 0 and td["group", "x"].sum() == 2


@pytest.mark.parametrize("options", BACKENDS)
def test_answers_are_the_clients_own(options):
    with InferenceServer(constant_policy(0.5), **options) as server:
        client = server.client()
        first, second = client(request(1.0, 2.0)), client(request(1.0))
        first["action"][0] = 7.0  # the policy's outputs are one weight, expanded
        assert first["action"].flatten().tolist() == [7, 0.5] and client(request(3.0))["action"].item() == 0.5
        server.update_policy_weights_(constant_policy(0.75))
        assert second["action"].item() == 0.5 and not second["action"].requires_grad


def test_a_bare_network_finds_its_keys_in_an_environment():
    with InferenceServer(Scale(), create_env_fn=CountingEnv) as server:
        client = server.client()
        assert (client.in_keys, client.out_keys) == (["observation"], ["action"])
        server.update_policy_weights_(Scale(3.0).state_dict())
        assert client(request(1.0))["action"].item() == 3


def test_the_exploration_type_is_that_of_the_server():
    def told(td):
        return td.set("action", torch.full((1, 1), exploration_type() == ExplorationType.DETERMINISTIC))

    with (
        InferenceServer(told, exploration_type=ExplorationType.DETERMINISTIC) as server,
        set_exploration_type(ExplorationType.RANDOM),
    ):
        assert server.client()(request(1.0))["action"].item()
        assert exploration_type() == ExplorationType.RANDOM


@pytest.mark.parametrize("options", BACKENDS)
def test_a_factory_makes_the_policy_where_it_acts(options):
    with InferenceServer(policy_factory=lambda: constant_policy(float(os.getpid())), **options) as server:
        acting = server.client()(request(1.0))["action"].item()
        assert (acting == os.getpid()) == (not options)
        with pytest.raises(CollectorError, match="there are no weights"):
            server.update_policy_weights_()
        server.update_policy_weights_(constant_policy(0.25))
        assert server.client()(request(1.0))["action"].item() == 0.25


# ------------------------------------------------------------------------------------------------ weights
@pytest.mark.parametrize(
    "options",
    [*BACKENDS, {**BACKENDS[1], "weight_sync": MultiProcessWeightSyncScheme()}],
    ids=["thread", "shm", "pipe"],
)
def test_weights_arrive_with_their_version(options):
    policy = doubling()
    with InferenceServer(policy, policy_version_key="policy_version", **options) as server:
        client = server.client()
        first = client(request(1.0, 2.0))
        assert first["policy_version"].tolist() == [0, 0] and first["policy_version"].dtype is torch.int64
        with torch.no_grad():
            policy.module.factor.fill_(5.0)
        assert client(request(1.0))["action"].item() == 2  # a copy acts
        server.update_policy_weights_()
        second = client(TensorDict({"observation": torch.ones(1)}, []))
        assert (second["action"].item(), second["policy_version"].item(), client.version) == (5, 1, 1)
        server.update_policy_weights_({"module.factor": torch.tensor(7.0, dtype=torch.float64)})
        assert client(request(1.0))["action"].item() == 7 and server.policy_version == 2
        assert server.stats()["policy_version"] == 2


@pytest.mark.parametrize("options", BACKENDS)
def test_weights_that_do_not_fit_are_refused_and_the_server_goes_on(options):
    with InferenceServer(doubling(), **options) as server:
        with pytest.raises(CollectorError, match="has no 'wrong'"):
            server.update_policy_weights_({"module.factor": torch.tensor(1.0), "wrong": torch.tensor(1.0)})
        assert server.client()(request(1.0))["action"].item() == 2
        server.update_policy_weights_({"module.factor": torch.tensor(4.0)})
        assert server.client()(request(1.0))["action"].item() == 4
        with pytest.raises(KeyMissingError, match="'policy' only"):
            server.update_policy_weights_(doubling(), model_id="value")


def test_weights_never_change_in_the_middle_of_a_call():
    class TwoReads(Scale):
        entered, go = threading.Event(), threading.Event()

        def __deepcopy__(self, memo):
            return TwoReads(self.factor.item())

        def forward(self, observation):
            before = self.factor.clone()
            self.entered.set()
            assert self.go.wait(SOON)
            return torch.cat([observation * before, observation * self.factor], -1)

    policy = TensorDictModule(TwoReads(2.0), in_keys=["observation"], out_keys=["action"])
    with InferenceServer(policy, policy_version_key="v") as server, ThreadPoolExecutor(1) as threads:
        future = server.client().submit(request(1.0))
        assert TwoReads.entered.wait(SOON)
        update = threads.submit(server.update_policy_weights_, {"module.factor": torch.tensor(3.0)})
        with pytest.raises(NotYetError):
            update.result(0.3)  # it waits for the call
        TwoReads.go.set()
        answer = future.result(SOON)
        update.result(SOON)
        assert answer["action"].tolist() == [[2, 2]] and answer["v"].item() == 0
        assert server.client()(request(1.0))["action"].tolist() == [[3, 3]]


@pytest.mark.parametrize("options", BACKENDS)
def test_a_server_goes_on_from_its_state(options):
    with InferenceServer(doubling(), **options) as server:
        server.update_policy_weights_({"module.factor": torch.tensor(6.0)})
        state = server.state_dict()
    with InferenceServer(doubling(), policy_version_key="v", **options) as server:
        server.load_state_dict(state)
        answer = server.client()(request(1.0))
        assert (answer["action"].item(), answer["v"].item(), server.policy_version) == (6, 1, 1)


def test_a_seed_governs_a_process():
    def draw(td):
        return td.set("action", torch.rand(td.shape))

    with InferenceServer(draw, **BACKENDS[1]) as server:
        drawn = []
        for seed in (3, 3, 4):
            server.set_seed(seed)
            drawn.append(server.client()(request(1.0))["action"].item())
    assert drawn[0] == drawn[1] != drawn[2]


# ------------------------------------------------------------------------------------------------ what goes wrong
@pytest.mark.parametrize("options", BACKENDS)
def test_an_error_of_the_policy_reaches_those_of_its_batch_and_the_server_lives_on(options):
    with (
        InferenceServer(doubling(), min_batch_size=2, timeout=1000.0, **options) as server,
        ThreadPoolExecutor(2) as two,
    ):
        client = server.client()
        asked = [two.submit(client, request(-1.0)), two.submit(client, request(1.0))]
        for each in asked:
            error = each.exception(SOON)
            assert isinstance(error, CollectorError) and "acting on 2 rows: ZeroDivisionError" in str(error)
            assert 'in forward\n    raise ZeroDivisionError("a negative observation")' in str(error)
            assert isinstance(error.__cause__, ZeroDivisionError)
        assert client(request(1.0, 2.0))["action"].flatten().tolist() == [2, 4]
        assert server.stats()["failures"] == 1


def test_what_a_policy_must_do_is_said():
    with (
        InferenceServer(lambda td: td["observation"]) as server,
        pytest.raises(CollectorError, match="the policy returned Tensor"),
    ):
        server.client()(request(1.0, 2.0))

    class Flat(nn.Module):
        def forward(self, observation):
            return observation.flatten()[:1]

    short = TensorDictModule(Flat(), in_keys=["observation"], out_keys=["action"])
    with (
        InferenceServer(short) as server,
        pytest.raises(CollectorError, match=r"'action' of shape \(1,\) for a batch of 2 rows; each output has"),
    ):
        server.client()(request(1.0, 2.0))


def test_a_request_that_lacks_an_input_is_refused_before_it_is_sent():
    with InferenceServer(doubling()) as server:
        with pytest.raises(KeyMissingError, match=r"the policy reads 'observation'.*its entries are 'pixels'"):
            server.client()(TensorDict({"pixels": torch.zeros(2)}, [2]))
        assert server.stats()["requests"] == 0
    with InferenceServer(lambda td: td) as server, pytest.raises(CollectorError, match="'said' cannot be sent"):
        server.client()(request(1.0).set("said", ["hello"]))


def test_a_server_process_that_is_killed_is_named_to_all_who_wait():
    with InferenceServer(doubling(), min_batch_size=3, timeout=1000.0, **BACKENDS[1]) as server:
        client = server.client()
        process = server._host.process.pid
        with ThreadPoolExecutor(3) as threads:
            asked = [threads.submit(client, request(value)) for value in (1.0, 2.0, -999.0)]
            for each in asked:
                assert f"its process {process} died or was killed" in str(each.exception(SOON))
        with pytest.raises(CollectorError, match="died or was killed"):
            client(request(1.0))
        with pytest.raises(CollectorError, match="died or was killed"):  # a new connection
            server.client()(request(1.0))
        with pytest.raises(CollectorError, match=f"process {process}.*killed by SIGKILL"):
            server.stats()
        with pytest.raises(CollectorError, match="killed by SIGKILL"):
            server.update_policy_weights_()
        assert not server.is_alive


@pytest.mark.parametrize("options", BACKENDS)
@pytest.mark.parametrize("remote", [None, True])
def test_the_end_of_the_server_is_told_to_all_who_wait(options, remote):
    server = InferenceServer(doubling(), min_batch_size=2, timeout=1000.0, **options).start()
    client = server.client(remote=remote)
    future = client.submit(request(1.0))
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(future.result)
        server.shutdown()
        with pytest.raises(CollectorError, match="has ended: it was shut down"):
            asked.result(SOON)
    with pytest.raises(CollectorError, match="has ended"):
        client(request(1.0))
    with pytest.raises(CollectorError, match="shut down; construct a new one"):
        server.start()
    with pytest.raises(CollectorError, match="this inference server is shut down"):
        server.client()
    server.shutdown()


def test_a_policy_that_hangs_is_told_and_left_behind():
    gate = Gate()
    server = InferenceServer(gate, answer_timeout=0.05).start()
    future = server.client().submit(request(1.0))
    assert gate.entered.wait(SOON)
    with pytest.raises(CollectorError, match=r"did not answer within 0.05 s.*client\(timeout=...\)"):
        future.result()
    with pytest.warns(UserWarning, match="did not return within 0.01 s; its thread goes on"):
        server.shutdown(timeout=0.01)
    with pytest.raises(CollectorError, match="its policy did not return"):
        future.result()
    gate.go.set()


def test_a_server_that_cannot_start_says_why():
    def broken():
        raise LookupError("no such policy")

    with pytest.raises(CollectorError, match="failed while starting: LookupError: no such policy"):
        InferenceServer(policy_factory=broken, **BACKENDS[1]).start()
    with pytest.raises(LookupError):
        InferenceServer(policy_factory=broken).start()
    with pytest.raises(CollectorError, match="not started: call start"):
        InferenceServer(doubling()).client()
    with pytest.raises(CollectorError, match="this system has"):
        InferenceServer(doubling(), backend="process", mp_start_method="beam").start()


@pytest.mark.parametrize("options", BACKENDS)
def test_a_server_that_nobody_holds_ends(options):
    server = InferenceServer(doubling(), **options).start()
    host, gone = server._host, weakref.ref(server)
    client = server.client(remote=True)
    del server
    gc.collect()
    assert gone() is None and not host.alive
    with pytest.raises(CollectorError, match="has ended"):
        client(request(1.0))


def test_a_client_of_threads_keeps_its_server():
    client = InferenceServer(doubling()).start().client()
    gc.collect()
    assert client(request(1.0))["action"].item() == 2


# ------------------------------------------------------------------------------------------------ numbers
def test_stats_count_batches_and_times():
    stats = InferenceStats()
    stats.count(rows=3, waited=[0.001, 0.003], computed=0.5, failed=False)
    stats.count(rows=1, waited=[0.002], computed=0.25, failed=True)
    stats.began -= 1e6
    found = stats.read()
    assert (found["requests"], found["rows"], found["batches"], found["failures"]) == (3, 4, 2, 1)
    assert found["batch_size_mean"] == 2 and found["batch_size_p50"] == 2
    assert found["waiting_ms_p50"] == pytest.approx(2) and found["computing_ms_p50"] == pytest.approx(375)
    assert found["computing_ms_p99"] == pytest.approx(497.5) and found["policy_share"] == pytest.approx(
        0.75e-6, rel=1e-3
    )
    stats.reset()
    assert stats.read()["requests"] == 0 and stats.read()["waiting_ms_p99"] == 0


@pytest.mark.parametrize("options", BACKENDS)
def test_a_server_has_stats(options):
    with InferenceServer(doubling(), **options) as server:
        client = server.client()
        client(request(1.0, 2.0)), client(request(1.0))
        found = server.stats()
        assert (found["requests"], found["rows"], found["batches"]) == (2, 3, 2) and 0 < found["policy_share"] < 1
        server.reset_stats()
        assert server.stats()["rows"] == 0
        assert "serving" in repr(server)
