"""AsyncEnvPool: what is sent comes back once, with its environment's index, whichever is ready first."""

import threading

import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import EnvError
from rl_core.testing import CountingEnv
from rl_envs import AsyncEnvPool, SerialEnv

GATES = [threading.Event() for _ in range(3)]


class GatedEnv(CountingEnv):
    """Steps when its gate is open."""

    def __init__(self, gate):
        super().__init__(length=99)
        self.gate = gate

    def _step(self, tensordict):
        assert GATES[self.gate].wait(30)
        return super()._step(tensordict)


@pytest.fixture
def gated():
    for gate in GATES:
        gate.set()
    pool = AsyncEnvPool([GatedEnv] * 3, create_env_kwargs=[{"gate": gate} for gate in range(3)])
    yield pool
    for gate in GATES:
        gate.set()
    pool.close()


BACKENDS = {"threading": {}, "multiprocessing": {"mp_start_method": "fork"}}


@pytest.fixture(params=BACKENDS)
def counting(request):
    makers = [lambda n=n: CountingEnv(length=n) for n in (2, 3, 4)]
    pool = AsyncEnvPool(makers, backend=request.param, envs_per_worker=2, **BACKENDS[request.param])
    yield pool
    pool.close()


def act(td, value=0.0):
    return td.set("action", torch.full((*td.batch_size, 1), value))


def test_what_is_ready_is_taken_first(gated):
    td = act(gated.reset())
    GATES[1].clear()
    gated.async_step_send(td)
    found = gated.async_step_recv(min_get=2)
    assert sorted(found["env_index"].tolist()) == [0, 2] and found["env_index"].dtype is torch.int64
    GATES[1].set()
    assert gated.async_step_recv()["env_index"].tolist() == [1]


def test_a_timeout_loses_nothing(gated):
    td = act(gated.reset())
    GATES[0].clear()
    gated.async_step_send(td)
    with pytest.raises(TimeoutError, match=r"2 of 3 step results.*nothing is lost"):
        gated.async_step_recv(min_get=3, timeout=0.2)
    GATES[0].set()
    found = gated.async_step_recv(min_get=3, timeout=30)
    assert sorted(found["env_index"].tolist()) == [0, 1, 2]
    assert found["next", "observation"].flatten().tolist() == [1, 1, 1]


def test_an_environment_has_one_thing_to_do_at_a_time(gated):
    td = act(gated.reset())
    GATES[0].clear()
    gated.async_step_send(td[:1], env_index=[0])
    with pytest.raises(EnvError, match=r"environment 0 still has a step to do.*async_step_recv"):
        gated.async_step_send(td[0], env_index=0)
    with pytest.raises(EnvError, match="environment 0 still"):
        gated.async_reset_send(env_index=[1, 0])
    gated.async_step_send(td[1], env_index=1)  # the refused call began nothing
    GATES[0].set()
    assert sorted(gated.async_step_recv(2)["env_index"].tolist()) == [0, 1]


def test_results_are_taken_by_kind_number_and_environment(counting):
    td = act(counting.reset())
    counting.async_step_send(td[:2], env_index=[0, 1])
    counting.async_reset_send(env_index=[2])
    assert counting.async_reset_recv()["env_index"].tolist() == [2]
    assert counting.async_step_recv(env_index=1)["env_index"].tolist() == [1]
    assert counting.async_step_recv(1, max_get=1)["env_index"].tolist() == [0]
    with pytest.raises(EnvError, match="asks for 1 results and 0 are on their way"):
        counting.async_step_recv()
    with pytest.raises(ValueError, match="max_get=1 is less than min_get=2"):
        counting.async_step_recv(2, max_get=1)
    with pytest.raises(EnvError, match="env_index 7 is not one of the 3"):
        counting.async_step_send(td[0], env_index=7)
    with pytest.raises(EnvError, match="2 environments"):
        counting.async_step_send(td, env_index=[0, 1])


def test_the_index_in_the_data_says_whose_it_is(counting):
    td = act(counting.reset())
    counting.async_step_send(td[1:], env_index=[1, 2])
    found = counting.async_step_recv(2)
    counting.async_step_send(act(found["next"].set("env_index", found["env_index"])))
    again = counting.async_step_recv(2)
    assert sorted(again["env_index"].tolist()) == [1, 2]
    assert again["next", "observation"].flatten().tolist() == [2, 2]


def test_a_step_with_a_reset_gives_the_end_and_the_new_beginning(counting):
    td = act(counting.reset())
    ends = []
    for _ in range(4):
        counting.async_step_and_maybe_reset_send(td)
        stepped, td = counting.async_step_and_maybe_reset_recv(3)
        order = stepped["env_index"].argsort()
        stepped, td = stepped[order], act(td[order].exclude("env_index"))
        ends.append((stepped["next", "observation"].flatten().tolist(), td["observation"].flatten().tolist()))
    assert ends == [
        ([1, 1, 1], [1, 1, 1]),
        ([2, 2, 2], [0, 2, 2]),
        ([1, 3, 3], [1, 0, 3]),
        ([2, 1, 4], [0, 1, 0]),
    ]


def test_as_a_batch_it_gives_what_a_serial_one_gives(counting):
    serial = SerialEnv(3, [lambda n=n: CountingEnv(length=n) for n in (2, 3, 4)])
    data = counting.rollout(9, lambda td: act(td), break_when_any_done=False, trust_policy=True)
    expected = serial.rollout(9, lambda td: act(td), break_when_any_done=False, trust_policy=True)
    assert (data == expected).all()
    assert [int(length) for length in counting.call("length")] == [2, 3, 4]


def test_what_was_sent_may_be_written_over(gated):
    td = act(gated.reset())
    GATES[0].clear()
    gated.async_step_send(td[0], env_index=0)
    td["observation"].fill_(9.0)
    GATES[0].set()
    assert gated.async_step_recv()["observation"].item() == 0


@pytest.mark.parametrize(("stack", "lazy"), [("dense", False), ("maybe_dense", False), ("lazy", True)])
def test_results_are_stacked_as_asked(stack, lazy):
    pool = AsyncEnvPool([CountingEnv] * 2, stack=stack)
    pool.async_reset_send()
    found = pool.async_reset_recv(2)
    assert (type(found) is not TensorDict) is lazy
    assert sorted(found["env_index"].flatten().tolist()) == [0, 1]
    pool.close()


def test_seeds_and_calls_wait_for_what_is_on_its_way(counting):
    counting.reset()
    counting.async_reset_send(env_index=0)
    with pytest.raises(EnvError, match=r"environments \[0\] have something to do"):
        counting.set_seed(0)
    counting.async_reset_recv()
    counting.set_seed(0)


def test_wrong_arguments_of_a_pool_are_told():
    with pytest.raises(ValueError, match="'threading' or 'multiprocessing'"):
        AsyncEnvPool([CountingEnv], backend="asyncio")
    with pytest.raises(ValueError, match="dense, maybe_dense, lazy"):
        AsyncEnvPool([CountingEnv], stack="no")
    with pytest.raises(EnvError, match=r"\[make\] \* n"):
        AsyncEnvPool(CountingEnv)
