"""ActorValueOperator, also as the published pixel example builds it."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import ExplorationType, set_exploration_type
from rl_modules import (
    MLP,
    ActorValueOperator,
    Categorical,
    ConvNet,
    NormalParamsWrapper,
    ProbabilisticActor,
    SafeModule,
    SafeProbabilisticModule,
    SafeProbabilisticTensorDictSequential,
    TanhNormal,
    ValueOperator,
)


def small():
    common = SafeModule(nn.Linear(3, 8), in_keys=["observation"], out_keys=["hidden"])
    logits = SafeModule(nn.Linear(8, 2), in_keys=["hidden"], out_keys=["logits"])
    policy = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)
    return ActorValueOperator(common, policy, ValueOperator(nn.Linear(8, 1), in_keys=["hidden"]))


def test_the_published_example_runs():
    common = SafeModule(
        ConvNet(bias_last_layer=True, depth=None, num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1]),
        in_keys=["pixels"],
        out_keys=["hidden"],
    )
    params = SafeModule(
        NormalParamsWrapper(MLP(num_cells=[64, 64], out_features=32, activation=nn.ELU)),
        in_keys=["hidden"],
        out_keys=["loc", "scale"],
    )
    policy = SafeProbabilisticTensorDictSequential(
        params,
        SafeProbabilisticModule(in_keys=["loc", "scale"], out_keys="action", distribution_class=TanhNormal),
    )
    value = MLP(num_cells=[64, 64], out_features=1, activation=nn.ELU)
    both = ActorValueOperator(common, policy, value)
    data = TensorDict({"pixels": torch.rand(2, 3, 84, 84)}, [2])
    assert both.get_policy_operator()(data.copy())["action"].shape == (2, 16)
    assert both.get_value_operator()(data.copy())["state_value"].shape == (2, 1)
    assert {"hidden", "action", "state_value"} <= set(both(data).keys())


def test_the_common_network_runs_once_for_both_heads():
    both, calls = small(), []
    both.module[0].module.register_forward_hook(lambda *_: calls.append(1))
    both(TensorDict({"observation": torch.zeros(4, 3)}, [4]))
    assert len(calls) == 1


def test_operators_share_parameters_with_the_whole():
    both = small()
    obs = torch.randn(4, 3)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        whole = both(TensorDict({"observation": obs}, [4]))
        alone = both.get_policy_operator()(TensorDict({"observation": obs}, [4]))
    torch.testing.assert_close(alone["action_log_prob"], whole["action_log_prob"])
    torch.testing.assert_close(both.get_value_operator().forward_tensors(obs)[1], whole["state_value"])
    parameters = {id(parameter) for parameter in both.parameters()}
    assert {id(parameter) for parameter in both.get_policy_operator().parameters()} < parameters


def test_the_policy_operator_gives_its_distribution_and_heads_read_hidden():
    both, data = small(), TensorDict({"observation": torch.randn(4, 3)}, [4])
    dist = both.get_policy_operator().get_dist(data)
    assert isinstance(dist, Categorical)
    assert both.get_policy_head().in_keys == ["hidden"]
    assert both.get_value_head().in_keys == ["hidden"]


def test_a_policy_without_keys_raises():
    with pytest.raises(TypeError, match="in_keys and out_keys"):
        ActorValueOperator(nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 1))


def test_a_chain_that_does_not_end_with_a_distribution_raises():
    with pytest.raises(TypeError, match="last module"):
        SafeProbabilisticTensorDictSequential(SafeModule(nn.Linear(3, 8), ["observation"], ["hidden"]))


def test_slices_keep_the_distribution_where_it_is_included():
    policy = small().get_policy_operator()
    assert isinstance(policy[1:], SafeProbabilisticTensorDictSequential)
    assert not isinstance(policy[:1], SafeProbabilisticTensorDictSequential)
    assert policy.det_part.out_keys == ["hidden", "logits"]
