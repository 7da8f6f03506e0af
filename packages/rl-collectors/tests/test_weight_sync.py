"""Weights that were trained here act in every worker, and the data say so."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import (
    AsyncCollector,
    Collector,
    MultiProcessWeightSyncScheme,
    MultiSyncCollector,
    NoWeightSyncScheme,
    SharedMemWeightSyncScheme,
)
from rl_collectors.weights.named import named_weights, write_weights
from rl_core.collectors import WeightSync
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.testing import ArrayCountingEnv

SCHEMES = [SharedMemWeightSyncScheme, MultiProcessWeightSyncScheme]


def make_env():
    return ArrayCountingEnv(length=3)


def linear(dtype=torch.float32):
    return TensorDictModule(_Cast(dtype), ["observation"], ["action"])


class _Cast(nn.Module):
    """A linear layer with a batch norm's buffers, whatever its dtype, between float32 data."""

    def __init__(self, dtype):
        super().__init__()
        self.linear = nn.Linear(1, 1, dtype=dtype)
        self.norm = nn.BatchNorm1d(1, affine=False, dtype=dtype)

    def forward(self, observation):
        return self.linear(observation.to(self.linear.weight.dtype)).float() + self.norm.running_mean.float()


def fill(policy, weight=0.0, bias=0.0, mean=0.0):
    with torch.no_grad():
        policy.module.linear.weight.fill_(weight)
        policy.module.linear.bias.fill_(bias)
        policy.module.norm.running_mean.fill_(mean)
    return policy


def two_workers(policy=None, **kwargs):
    kwargs = {"frames_per_batch": 4, "mp_start_method": "fork", "track_policy_version": True, **kwargs}
    return MultiSyncCollector([make_env] * 2, policy, **kwargs)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("factory", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_worker_acts_with_the_new_weights_and_echoes_their_version(scheme, factory, dtype):
    trained = fill(linear(), bias=0.5)
    given = {"policy_factory": lambda: linear(dtype)} if factory else {"policy": trained}
    with two_workers(**given, weight_sync_schemes={"policy": scheme()}) as collector:
        fill(trained)
        collector.update_policy_weights_(trained)
        batch = collector.rollout()
        assert (batch["action"] == 0).all() and (batch["policy_version"] == 1).all()
        fill(trained, bias=1.0)
        collector.update_policy_weights_(trained, worker_ids=[1])
        batch = collector.rollout()
        assert (batch["action"][0] == 0).all() and (batch["action"][1] == 1).all()
        assert batch["policy_version"].tolist() == [[1, 1], [2, 2]]
        for bias in (0.25, 0.75):  # twice in a row
            collector.update_policy_weights_(fill(trained, bias=bias))
        batch = collector.rollout()
        assert (batch["action"] == 0.75).all() and (batch["policy_version"] == 4).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_buffers_travel_with_parameters(scheme):
    trained = fill(linear())
    with two_workers(trained, weight_sync_schemes={"policy": scheme()}) as collector:
        fill(trained, mean=0.5)
        collector.update_policy_weights_()
        assert (collector.rollout()["action"] == 0.5).all()


def test_weights_may_be_a_state_dict_or_a_tensordict():
    trained = fill(linear(), bias=0.5)
    with two_workers(linear()) as collector:
        collector.update_policy_weights_(trained.state_dict())
        assert (collector.rollout()["action"] == 0.5).all()
        collector.update_policy_weights_(TensorDict.from_module(fill(trained, bias=0.25)))
        assert (collector.rollout()["action"] == 0.25).all()
        collector.update_policy_weights_(weights_dict={"policy": fill(trained, bias=1.0)})
        assert (collector.rollout()["action"] == 1.0).all()


def test_no_worker_shares_memory_with_the_policy_in_training():
    trained = fill(linear(), bias=0.5).share_memory()
    with two_workers(trained) as collector:
        fill(trained, bias=1.0)
        assert (collector.rollout()["action"] == 0.5).all()


def test_a_worker_that_does_not_exist_is_named():
    with two_workers(linear()) as collector:
        for worker in (2, -1):
            with pytest.raises(CollectorError, match=rf"no worker {worker}; the workers are 0 to 1"):
                collector.update_policy_weights_(worker_ids=[worker])


def test_weights_that_do_not_fit_raise_and_leave_the_workers_as_they_were():
    trained = fill(linear(), bias=0.5)
    with two_workers(trained) as collector:
        with pytest.raises(CollectorError, match=r"worker 0 failed while taking new weights.*they lack 'module"):
            collector.update_policy_weights_({"module.linear.bias": torch.zeros(1)})
        assert (collector.rollout()["action"] == 0.5).all()
        collector.update_policy_weights_(fill(trained, bias=0.25))
        assert (collector.rollout()["action"] == 0.25).all()


def test_a_policy_made_in_the_workers_needs_weights_to_be_named():
    with (
        two_workers(policy_factory=linear) as collector,
        pytest.raises(CollectorError, match="made in the workers"),
    ):
        collector.update_policy_weights_()


def test_a_model_without_a_scheme_is_named():
    with two_workers(linear()) as collector, pytest.raises(KeyMissingError, match=r"'critic', only for 'policy'"):
        collector.update_policy_weights_(linear(), model_id="critic")


def test_random_actions_have_nothing_to_update():
    with two_workers() as collector:
        collector.update_policy_weights_()
        collector.rollout()


def test_no_sync_leaves_the_policy_that_was_sent():
    trained = fill(linear(), bias=0.5)
    with two_workers(trained, weight_sync_schemes={"policy": NoWeightSyncScheme()}) as collector:
        collector.update_policy_weights_(fill(trained, bias=1.0))
        assert (collector.rollout()["action"] == 0.5).all()


def test_without_waiting_the_next_batches_still_get_the_weights():
    trained = fill(linear(), bias=0.5)
    scheme = SharedMemWeightSyncScheme(sync=False)
    with two_workers(trained, weight_sync_schemes={"policy": scheme}) as collector:
        for bias in (0.25, 1.0):
            collector.update_policy_weights_(fill(trained, bias=bias))
        scheme.settle()
        assert (collector.rollout()["action"] == 1.0).all()


def test_a_scheme_serves_one_collector():
    scheme = SharedMemWeightSyncScheme()
    assert isinstance(scheme, WeightSync)
    with pytest.raises(CollectorError, match="not connected"):
        scheme.send(linear())
    with (
        two_workers(linear(), weight_sync_schemes={"policy": scheme}),
        pytest.raises(CollectorError, match="serves a collector already"),
    ):
        two_workers(linear(), weight_sync_schemes={"policy": scheme})


@pytest.mark.parametrize("weight_updates", [1, 3])
def test_an_asynchronous_worker_acts_with_new_weights_between_two_steps(weight_updates):
    trained = fill(linear(), bias=0.0)
    with AsyncCollector(
        make_env, trained, frames_per_batch=8, total_frames=8 * 20, track_policy_version=True, mp_start_method="fork"
    ) as collector:
        batches = iter(collector)
        next(batches)
        for k in range(weight_updates):
            collector.update_policy_weights_(fill(trained, bias=float(k + 1)))
            for _ in range(3):
                batch = next(batches)
                assert torch.equal(batch["action"].squeeze(-1), batch["policy_version"].float())  # never half-updated
            assert (batch["policy_version"] == k + 1).all()  # the third is begun after the update


def test_weights_are_sent_with_each_batch_on_request():
    trained = fill(linear(), bias=0.0)
    with two_workers(trained, update_at_each_batch=True) as collector:
        for step in range(3):
            assert (collector.rollout()["action"] == step).all()
            fill(trained, bias=step + 1.0)


def test_tied_parameters_need_one_of_their_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.b = self.a

    module, other = Tied(), Tied()
    write_weights(module, named_weights(other))
    assert torch.equal(module.b.weight, other.a.weight) and module.a.weight is module.b.weight
    write_weights(module, dict(other.named_parameters()))


def test_updates_leave_the_parameters_registered():
    policy, trained = linear(), linear()
    names, before = list(policy.state_dict()), dict(policy.named_parameters())
    for _ in range(3):
        write_weights(policy, named_weights(trained))
    assert list(policy.state_dict()) == names
    assert all(dict(policy.named_parameters())[name] is value for name, value in before.items())


def test_nothing_is_written_where_one_weight_does_not_fit():
    policy = fill(linear(), bias=0.5)
    wrong = {**named_weights(fill(linear(), bias=1.0)), "module.linear.weight": torch.zeros(2, 1)}
    with pytest.raises(CollectorError, match=r"'module.linear.weight' has shape \(2, 1\).*\(1, 1\)"):
        write_weights(policy, wrong)
    assert policy.module.linear.bias.item() == 0.5


def test_one_process_knows_worker_0_only():
    collector = Collector(make_env, linear(), frames_per_batch=2)
    collector.update_policy_weights_(linear(), worker_ids=[0])
    with pytest.raises(CollectorError, match="only worker 0"):
        collector.update_policy_weights_(linear(), worker_ids=[1])
    with pytest.raises(CollectorError, match="in two ways"):
        collector.update_policy_weights_(linear(), policy=linear())
    assert collector.get_model() is collector.policy
    with pytest.raises(KeyMissingError, match=r"there is no model 'env\.transform"):
        collector.get_model("env.transform[0]")
