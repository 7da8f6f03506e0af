"""Evaluator: the weights of the moment, complete episodes, training left alone, and errors that arrive."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import threading
import weakref

import numpy as np
import pytest
import ray
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Evaluator, RayEvaluator
from rl_collectors.ray.cluster import start_ray
from rl_core import Composite, Unbounded
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.exploration import ExplorationType, exploration_type
from rl_core.testing import CountingEnv
from rl_core.transforms.base import Transform
from rl_core.transforms.transformed_env import TransformedEnv

BESIDE = ["thread", "process"]
LOCAL = ["sync", *BESIDE]


class PayingEnv(CountingEnv):
    """Every step pays the action; the evaluator's numbers are then those of the policy's weight."""

    def __init__(self, length=3, batch_size=()):
        super().__init__(length=length, batch_size=batch_size)
        self.action_spec = Unbounded(shape=(*self.batch_size, 1))

    def _step(self, tensordict):
        return super()._step(tensordict).set("reward", tensordict["action"].clone())

    def _set_seed(self, seed):
        self.seed = seed


class GatedEnv(PayingEnv):
    """Waits in its first step until it is let go."""

    def __init__(self):
        super().__init__()
        self.reached, self.gate = threading.Event(), threading.Event()

    def _step(self, tensordict):
        self.reached.set()
        assert self.gate.wait(30)
        return super()._step(tensordict)


class Saboteur(PayingEnv):
    """Does something at its second step."""

    def __init__(self, deed):
        super().__init__()
        self.deed = deed

    def _step(self, tensordict):
        if self.count.item() >= 1:
            self.deed()
        return super()._step(tensordict)


class NoisyEnv(PayingEnv):
    """Draws from the global generators, as a user's environment may."""

    def _step(self, tensordict):
        drawn = torch.rand(1) + random.random() + np.random.rand()
        return super()._step(tensordict).set("reward", drawn.float())

    def _set_seed(self, seed):
        torch.manual_seed(seed)


class Norm(Transform):
    """A running count, as a normaliser has one; it moves only in training."""

    def __init__(self, in_keys=("observation",)):
        super().__init__(list(in_keys))
        self.register_buffer("seen", torch.zeros(()))

    def _apply_transform(self, value):
        if self.training:
            self.seen += 1
        return value

    def transform_observation_spec(self, observation_spec):
        observation_spec["seen"] = Unbounded(shape=observation_spec.shape)
        return observation_spec

    def _call(self, tensordict):
        return super()._call(tensordict).set("seen", self.seen.expand(tensordict.batch_size).clone())


class Recorder(Transform):
    """Keeps observations; what is dumped is told by name."""

    def __init__(self, told):
        super().__init__(["observation"])
        self.frames, self.told, self.max_frames = [], told, None

    def _call(self, tensordict):
        if self.max_frames is None or len(self.frames) < self.max_frames:
            self.frames.append(tensordict["observation"].item())
        return tensordict

    def dump(self, suffix=None, step=None):
        self.told.append((suffix, step, self.frames))
        self.frames = []


class Lines:
    def __init__(self):
        self.lines = []

    def log_scalar(self, name, value, step):
        self.lines.append((name, value, step))


class Weight(nn.Module):
    """Writes its weight as the action; looks around while it acts."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(weight)))
        self.dropout = nn.Dropout()
        self.in_keys, self.out_keys = ["observation"], ["action"]

    def forward(self, tensordict):
        assert not self.training and not self.dropout.training
        assert exploration_type() is ExplorationType.DETERMINISTIC and not torch.is_grad_enabled()
        return tensordict.set("action", self.weight.expand_as(tensordict["observation"]).clone())


def evaluator(env=PayingEnv, policy=None, backend="sync", **kwargs):
    options = {"mp_start_method": "fork"} if backend == "process" else {}
    return Evaluator(env, policy, backend=backend, **{"num_trajectories": 2, **options, **kwargs})


@pytest.fixture(scope="module")
def embedded_ray():
    start_ray({"num_cpus": 2, "include_dashboard": False, "log_to_driver": False})
    yield
    ray.shutdown()


# -------------------------------------------------------------------- numbers
@pytest.mark.parametrize("backend", LOCAL)
def test_all_numbers_of_an_evaluation(backend):
    def make():
        return PayingEnv(length=[1, 4], batch_size=[2])

    with evaluator(make, Weight(2), backend, num_trajectories=3) as ours:
        result = ours.evaluate(step=70)
    assert result.pop("eval/fps") > 0
    assert result == {
        "eval/return_mean": pytest.approx((2 + 2 + 8) / 3),
        "eval/return_std": pytest.approx(8**0.5),
        "eval/return_min": 2,
        "eval/return_max": 8,
        "eval/length_mean": 2,
        "eval/episodes": 3,
        "eval/step": 70,
        "eval/policy_version": 1,
    }


@pytest.mark.parametrize("backend", LOCAL)
def test_further_numbers_come_from_whole_episodes(backend):
    def metrics(episodes):
        return {"last": sum(float(episode["next", "observation"][-1]) for episode in episodes)}

    with evaluator(lambda: PayingEnv(length=[2, 5], batch_size=[2]), Weight(1), backend, metrics_fn=metrics) as ours:
        assert ours.evaluate()["eval/last"] == 7
    with pytest.raises(CollectorError, match=r"metrics_fn returned list.*\{'success'"):
        evaluator(policy=Weight(1), metrics_fn=lambda episodes: []).evaluate()


def test_numbers_are_logged_at_their_step_under_the_prefix():
    logger, heard = Lines(), []
    options = {"logger": logger, "log_prefix": "test", "on_result": heard.append}
    with evaluator(policy=Weight(1), backend="thread", **options) as ours:
        ours.trigger_eval(step=5)
        result = ours.wait()
        ours.trigger_eval(step=9)
        ours.wait()
        with pytest.raises(CollectorError, match="pass step="):
            ours.trigger_eval()
    logged = {(name, step): value for name, value, step in logger.lines}
    assert len(logged) == len(logger.lines) and ("test/step", 5) not in logged
    assert {name for name, _ in logged} == set(result) - {"test/step"}
    assert (logged["test/return_mean", 5], logged["test/policy_version", 9]) == (3, 2)
    assert heard[0] == result and len(heard) == 2


def test_a_reward_may_be_named_with_next_in_front():
    class Renamed(PayingEnv):
        def __init__(self):
            super().__init__()
            self.full_reward_spec = Composite({("agent", "gain"): Unbounded(shape=(1,))})

        def _step(self, tensordict):
            out = super()._step(tensordict)
            return out.set(("agent", "gain"), out.pop("reward"))

    key = ("next", "agent", "gain")
    assert evaluator(Renamed, Weight(2), reward_keys=key).evaluate()["eval/return_mean"] == 6
    assert evaluator(Renamed, Weight(2), reward_keys=[key[1:]]).evaluate()["eval/return_mean"] == 6
    with pytest.raises(KeyMissingError, match="reward"):
        evaluator(Renamed, Weight(2)).evaluate()


def test_policies_that_are_no_tensordict_modules_are_called_with_observations():
    linear = nn.Linear(1, 1)
    with torch.no_grad():
        linear.weight.fill_(1)
        linear.bias.fill_(0)
    assert evaluator(policy=linear).evaluate()["eval/return_mean"] == 0 + 1 + 2
    assert evaluator(policy=lambda observation: observation + 1).evaluate()["eval/return_mean"] == 1 + 2 + 3
    assert evaluator(policy=TensorDictModule(linear, ["observation"], ["action"])).evaluate()["eval/return_mean"] == 3
    assert evaluator(policy=None).evaluate()["eval/length_mean"] == 3
    made = evaluator(policy_factory=lambda: Weight(4), backend="thread")
    assert made.evaluate()["eval/return_mean"] == 12
    assert made.evaluate(Weight(5))["eval/return_mean"] == 15
    made.shutdown()


@pytest.mark.parametrize("backend", LOCAL)
def test_data_travel_to_the_device_of_the_policy(backend):
    with evaluator(policy=Weight(2), backend=backend, device="cpu") as ours:
        assert ours.evaluate(Weight(3))["eval/return_mean"] == 9
        assert ours.evaluate()["eval/return_mean"] == 6


# -------------------------------------------------------------------- weights
def test_the_weights_are_those_of_the_trigger_while_training_goes_on_in_place():
    env, policy = GatedEnv(), Weight(2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)

    def train():  # the weight grows by one, in place
        optimizer.zero_grad()
        (-policy.weight).backward()
        optimizer.step()

    with evaluator(env, policy, "thread", busy="queue") as ours:
        ours.trigger_eval(step=1)
        assert env.reached.wait(30) and ours.pending and ours.poll() is None
        train()
        ours.trigger_eval(step=2)  # waits until the first one has ended
        train()
        assert policy.weight.item() == 4 and policy.training and policy.dropout.training
        env.gate.set()
        assert [ours.wait()["eval/return_mean"], ours.wait()["eval/return_mean"]] == [3 * 2, 3 * 3]
        assert ours.evaluate(step=3)["eval/return_mean"] == 3 * 4
        assert ours.wait() is None and ours.poll() is None


def test_queued_weights_are_those_of_their_triggers_in_another_process():
    policy = Weight(1)
    with evaluator(policy=policy, backend="process", busy="queue") as ours:
        for step in range(3):
            assert ours.trigger_eval(step=step)
            with torch.no_grad():
                policy.weight += 1
        results = [ours.wait() for _ in range(3)]
        assert ours.wait() is None
    assert [(r["eval/step"], r["eval/return_mean"], r["eval/policy_version"]) for r in results] == [
        (0, 3, 1), (1, 6, 2), (2, 9, 3)
    ]  # fmt: skip


@pytest.mark.parametrize("backend", LOCAL)
def test_weights_can_be_given_in_every_form_and_the_policy_keeps_its_own(backend):
    policy = Weight(1)
    forms = [Weight(5), Weight(6).state_dict(), TensorDict.from_module(Weight(7))]
    with evaluator(policy=policy, backend=backend) as ours:
        assert [ours.evaluate(form)["eval/return_mean"] for form in forms] == [15, 18, 21]
        assert ours.evaluate()["eval/return_mean"] == 3
    assert policy.weight.item() == 1 and policy.training


def test_a_plain_function_takes_no_weights():
    with pytest.raises(CollectorError, match="takes no weights"):
        evaluator(policy=lambda observation: observation).evaluate(Weight(1))


def test_a_policy_in_the_middle_of_a_graph_can_still_be_differentiated():
    policy = Weight(2)
    loss = policy.weight**2
    with evaluator(policy=policy) as ours:
        ours.evaluate(Weight(9))
        ours.evaluate()
    loss.backward()
    assert policy.weight.grad.item() == 4


# -------------------------------------------------------------------- busy
def test_a_trigger_during_an_evaluation_is_skipped_or_refused():
    for busy in ("skip", "error"):
        env = GatedEnv()
        with evaluator(env, Weight(1), "thread", busy_policy=busy) as ours:
            assert ours.trigger_eval(step=1) and env.reached.wait(30)
            if busy == "skip":
                assert not ours.trigger_eval(step=2)
            else:
                with pytest.raises(CollectorError, match="under way"):
                    ours.trigger_eval(step=2)
            env.gate.set()
            assert ours.wait()["eval/step"] == 1
            assert ours.trigger_eval(step=3)
            result = ours.wait()
            assert (result["eval/step"], result["eval/policy_version"]) == (3, 2)


def test_a_trigger_may_wait_for_the_evaluation_under_way():
    env = GatedEnv()
    with evaluator(env, Weight(1), "thread", busy="wait") as ours:
        ours.trigger_eval(step=1)
        threading.Timer(0.05, env.gate.set).start()
        assert ours.trigger_eval(step=2)
        assert [ours.wait()["eval/step"], ours.wait()["eval/step"]] == [1, 2]


def test_waiting_has_an_end_and_the_evaluation_goes_on():
    env = GatedEnv()
    with evaluator(env, Weight(1), "thread") as ours:
        ours.trigger_eval()
        with pytest.raises(CollectorError, match="did not end within"):
            ours.wait(timeout=0.01)
        env.gate.set()
        assert ours.wait(timeout=30)["eval/return_mean"] == 3


def test_a_triggered_evaluation_in_the_call_is_there_at_the_next_poll():
    with evaluator(policy=Weight(1)) as ours:
        assert ours.trigger_eval(step=1) and ours.trigger_eval(step=2) and not ours.pending
        assert [ours.poll()["eval/step"], ours.wait()["eval/step"], ours.poll(), ours.wait()] == [1, 2, None, None]


# -------------------------------------------------------------------- training left alone
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("backend", ["sync", "process"])
def test_the_generators_of_training_are_left_alone(backend, seed):
    def draws():
        return torch.rand(3).tolist(), random.random(), np.random.rand()

    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = draws()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with evaluator(NoisyEnv, Weight(1), backend, seed=seed) as ours:
        first, second = ours.evaluate()["eval/return_mean"], ours.evaluate()["eval/return_mean"]
    assert draws() == expected
    assert (first == second) is (seed is not None)


def test_a_thread_refuses_to_seed_the_generator_of_training():
    with pytest.raises(CollectorError, match=r"NoisyEnv seeds torch's global generator.*backend='process'"):
        evaluator(NoisyEnv, Weight(1), "thread", seed=1)
    with evaluator(PayingEnv(), Weight(1), "thread", seed=1) as ours:
        assert ours.evaluate()["eval/return_mean"] == 3


@pytest.mark.parametrize("backend", LOCAL)
def test_statistics_of_training_are_handed_over_and_stand_still(backend):
    training_env = TransformedEnv(PayingEnv(), Norm())
    training_env.rollout(3)
    seen = training_env.transform.seen.item()
    assert seen > 0

    def metrics(episodes):
        return {"seen": max(float(episode["next", "seen"].max()) for episode in episodes)}

    def make():
        return TransformedEnv(PayingEnv(), Norm())

    with evaluator(make, Weight(1), backend, training_env=training_env, metrics_fn=metrics) as ours:
        assert ours.evaluate()["eval/seen"] == seen
        training_env.rollout(3)
        now = training_env.transform.seen.item()
        assert ours.evaluate()["eval/seen"] == now > seen
    assert training_env.transform.seen.item() == now and training_env.training and training_env.transform.training


def test_statistics_are_those_of_the_trigger():
    class GatedNormEnv(GatedEnv):
        pass

    base, training_env = GatedNormEnv(), TransformedEnv(PayingEnv(), Norm())
    training_env.rollout(3)
    seen = training_env.transform.seen.item()
    own = TransformedEnv(base, Norm())
    with evaluator(own, Weight(1), "thread") as ours:
        ours.update_env_state(training_env)
        training_env.rollout(3)
        ours.trigger_eval()
        assert base.reached.wait(30)
        assert own.transform.seen.item() == seen and not own.transform.training
        base.gate.set()
        ours.wait()
    assert own.transform.training and own.transform.seen.item() == seen


def test_the_training_environment_itself_can_be_evaluated_in_and_goes_on_counting():
    env = TransformedEnv(PayingEnv(), Norm())
    env.rollout(3)
    seen = env.transform.seen.item()
    with evaluator(env, Weight(1), training_env=env) as ours:
        ours.evaluate()
    assert env.transform.seen.item() == seen and not env.is_closed
    env.rollout(3)
    assert env.transform.seen.item() > seen


def test_statistics_that_fit_no_transform_are_an_error():
    training_env = TransformedEnv(PayingEnv(), Norm())
    with pytest.raises(CollectorError, match=r"statistics in .*Norm.*transforms are none"):
        evaluator(policy=Weight(1), training_env=training_env).evaluate()


# -------------------------------------------------------------------- films
def test_a_film_holds_its_episodes_and_is_written_at_its_step():
    told = []
    env = TransformedEnv(PayingEnv(), Recorder(told))
    with evaluator(env, Weight(1), video_every=2) as ours:
        for step in (10, 20, 30):
            ours.evaluate(step=step)
    film = [0, 1, 2, 3, 0, 1, 2, 3]  # both episodes, and no reset after the last
    assert told == [(None, 10, film), (None, 30, film)]
    assert env.transform.max_frames is None


def test_a_film_of_an_evaluation_that_fails_ends_there():
    def stumble():
        raise ZeroDivisionError

    told = []
    with pytest.raises(ZeroDivisionError):
        evaluator(TransformedEnv(Saboteur(stumble), Recorder(told)), Weight(1)).evaluate(step=4)
    assert told == [("incomplete", 4, [0, 1])]


def test_recorders_can_be_left_to_the_caller():
    told = []
    env = TransformedEnv(PayingEnv(), Recorder(told))
    evaluator(env, Weight(1), dump_video=False).evaluate()
    assert not told and len(env.transform.frames) == 8


# -------------------------------------------------------------------- what goes wrong
def stumble():
    raise ZeroDivisionError("the wheel came off")


@pytest.mark.parametrize("backend", BESIDE)
def test_an_error_arrives_once_with_its_traceback_and_the_next_evaluation_is_new(backend):
    said = r"(?s)evaluation 1 at step 7 failed: ZeroDivisionError: the wheel came off.*in stumble"
    deeds = [stumble]

    def deed():
        if deeds:
            deeds.pop()()

    for ask in ("poll", "wait", "trigger_eval", "evaluate"):
        deeds[:] = [stumble]
        with evaluator(lambda: Saboteur(deed), Weight(1), backend) as ours:
            with pytest.raises(CollectorError, match=said) as caught:
                if ask == "evaluate":
                    ours.evaluate(step=7)
                ours.trigger_eval(step=7)
                if ask == "wait":
                    ours.wait()
                while ours.pending:
                    ours._dispatcher.wait()
                getattr(ours, ask)()
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert ours.poll() is None
            assert ours.evaluate(step=8)["eval/return_mean"] == 3


@pytest.mark.parametrize("backend", BESIDE)
def test_an_error_that_nobody_asked_for_is_raised_at_the_end(backend):
    ours = evaluator(lambda: Saboteur(stumble), Weight(1), backend)
    ours.trigger_eval()
    while ours.pending:
        ours._dispatcher.wait()
    with pytest.raises(CollectorError, match="the wheel came off"):
        ours.shutdown()
    assert ours.closed


def test_what_cannot_be_made_in_the_process_is_told():
    def broken():
        raise OSError("no such game")

    with evaluator(broken, Weight(1), "process") as ours:
        ours.trigger_eval()
        with pytest.raises(CollectorError, match=r"(?s)making of its environment.*no such game.*in broken"):
            ours.wait()
        with pytest.raises(CollectorError, match=r"(?s)no process left.*no such game"):
            ours.evaluate()


def test_a_killed_process_is_named():
    with evaluator(lambda: Saboteur(lambda: os.kill(os.getpid(), signal.SIGKILL)), Weight(1), "process") as ours:
        ours.trigger_eval(step=3)
        with pytest.raises(CollectorError, match=r"process died during evaluation 1 at step 3 \(killed by SIGKILL"):
            ours.wait(timeout=30)
        with pytest.raises(CollectorError, match="no process left"):
            ours.evaluate()


def test_an_evaluation_takes_no_longer_than_it_may():
    endless = PayingEnv(length=10**9)
    with pytest.raises(CollectorError, match=r"timeout=0.01 s: 0 of 2 episodes.*max_steps"):
        evaluator(endless, Weight(1), timeout=0.01).evaluate()
    assert evaluator(endless, Weight(1), max_steps=4).evaluate()["eval/length_mean"] == 4


def test_arguments_that_do_not_fit():
    for kwargs, said in [
        ({"backend": "mpi"}, "backend is 'mpi'; it is one of 'sync', 'thread', 'process', 'ray'"),
        ({"busy": "never"}, "busy is 'never'"),
        ({"num_trajectories": 0}, "num_trajectories is 0"),
        ({"policy": Weight(1), "policy_factory": Weight}, "exclude each other"),
        ({"env": 3}, "env is an environment, a function"),
        ({"env": dict}, "env returned dict"),
        ({"env": PayingEnv(), "backend": "process"}, "pass a function that makes it"),
        ({"backend": "process", "mp_start_method": "thread"}, "mp_start_method is 'thread'"),
    ]:
        with pytest.raises(CollectorError, match=said):
            Evaluator(**{"env": PayingEnv, **kwargs})


# -------------------------------------------------------------------- the end
@pytest.mark.parametrize("backend", BESIDE)
@pytest.mark.parametrize("how", ["shutdown", "garbage"])
def test_nothing_is_left_behind_even_in_the_middle_of_an_evaluation(backend, how):
    threads, children = set(threading.enumerate()), set(multiprocessing.active_children())
    ours = evaluator(lambda: PayingEnv(length=10**9), Weight(1), backend)
    ours.trigger_eval()
    assert ours.pending
    if how == "shutdown":
        ours.shutdown()
        ours.shutdown()
        with pytest.raises(CollectorError, match="shut down"):
            ours.evaluate()
    gone = weakref.ref(ours)
    del ours
    gc.collect()
    assert gone() is None
    assert set(threading.enumerate()) <= threads
    assert set(multiprocessing.active_children()) <= children


@pytest.mark.parametrize("backend", ["sync", "thread"])
def test_only_an_environment_that_was_made_here_is_closed(backend):
    made, given = [], PayingEnv()

    def make():
        made.append(PayingEnv())
        return made[0]

    for env in (make, given):
        with evaluator(env, Weight(1), backend) as ours:
            ours.evaluate()
    assert made[0].is_closed and not given.is_closed


def test_an_error_of_the_callers_is_not_replaced():
    with pytest.raises(KeyError, match="mine"), evaluator(lambda: Saboteur(stumble), Weight(1), "thread") as ours:
        ours.trigger_eval()
        while ours.pending:
            ours._dispatcher.wait()
        ours._collect()
        raise KeyError("mine")


def test_a_process_that_starts_anew_needs_functions_it_can_import():
    with Evaluator(PayingEnv, Weight(2), backend="process", num_trajectories=1) as ours:
        assert ours.evaluate()["eval/return_mean"] == 6
    with pytest.raises(CollectorError, match="env_kwargs cannot be sent"):
        Evaluator(PayingEnv, backend="process", create_env_kwargs={"length": threading.Lock()})


# -------------------------------------------------------------------- Ray
class FatalEnv(PayingEnv):
    """Kills its process where the action is 99, and never ends where it is -1."""

    def _step(self, tensordict):
        if tensordict["action"].item() == 99:
            os.kill(os.getpid(), signal.SIGKILL)
        out = super()._step(tensordict)
        return out.set("terminated", out["terminated"] & (tensordict["action"] != -1))


def test_an_actor_evaluates_tells_errors_and_is_named_when_killed(embedded_ray):
    policy = Weight(2)
    with RayEvaluator(lambda: FatalEnv(), policy, num_trajectories=2, busy="queue", ray_kwargs={"num_cpus": 0}) as ours:
        ours.trigger_eval(step=1)
        with torch.no_grad():
            policy.weight += 1
        ours.trigger_eval(step=2)
        assert [ours.wait()["eval/return_mean"], ours.wait()["eval/return_mean"]] == [6, 9]
        with pytest.raises(CollectorError, match=r"(?s)evaluation 3 failed.*Traceback"):
            ours.evaluate({"weight": torch.zeros(2)})
        assert ours.evaluate(Weight(4))["eval/policy_version"] == 4
        ours.trigger_eval(Weight(99), step=5)
        with pytest.raises(CollectorError, match="Ray actor died during evaluation 5 at step 5"):
            ours.wait(timeout=60)


def test_an_actor_at_work_is_shut_down(embedded_ray):
    endless = RayEvaluator(lambda: FatalEnv(), Weight(-1), ray_kwargs={"num_cpus": 0})
    endless.trigger_eval()
    assert endless.pending
    endless.shutdown()
    assert not endless.pending and endless.closed
