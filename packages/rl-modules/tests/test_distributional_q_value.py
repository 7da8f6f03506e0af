"""Greedy choices among value distributions, and the part of an actor that a loss evaluates."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import PolicyError
from rl_core.specs import Categorical as CategoricalSpec
from rl_core.specs import MultiOneHot, OneHot
from rl_modules import (
    MLP,
    DistributionalDQNnet,
    DistributionalQValueActor,
    DistributionalQValueModule,
    ImplicitQuantileActor,
    ImplicitQuantileNet,
    QuantileQValueActor,
    QuantileQValueModule,
    QValueActor,
)

SUPPORT = torch.tensor([-1.0, 0.0, 1.0])


def rows(*columns):
    """Log-probabilities [1, K, n] from one list of probabilities per action."""
    return torch.tensor(columns).T.log().unsqueeze(0)


def test_the_largest_mean_wins_not_the_largest_atom():
    # means: 0.9 - 0.1 = .8, then .5, then 0
    log_probs = rows([0.1, 0.0, 0.9], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0])
    action, values = DistributionalQValueModule("one_hot", SUPPORT).forward_tensors(log_probs)
    assert action.tolist() == [[1, 0, 0]] and values is log_probs
    assert DistributionalQValueModule("categorical", SUPPORT).forward_tensors(log_probs)[0].tolist() == [0]


def test_masked_actions_are_never_chosen():
    module = DistributionalQValueModule("categorical", SUPPORT, action_mask_key="mask")
    log_probs = rows([0.1, 0.0, 0.9], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0])
    assert module.forward_tensors(log_probs, torch.tensor([[False, False, True]]))[0].tolist() == [2]
    with pytest.raises(PolicyError, match="row 0"):
        module.forward_tensors(log_probs, torch.tensor([[False, False, False]]))


def test_quantiles_are_averaged():
    quantiles = torch.tensor([[[0.0, 1.0], [9.0, 1.0], [-8.0, 1.0]]])
    assert QuantileQValueModule(spec=CategoricalSpec(2)).forward_tensors(quantiles)[0].tolist() == [1]


def test_an_actor_on_scores_writes_log_probabilities():
    actor = DistributionalQValueActor(MLP(in_features=4, out_features=(3, 2), num_cells=[]), SUPPORT, spec=OneHot(2))
    data = actor(TensorDict({"observation": torch.randn(6, 4)}, [6]))
    assert actor.out_keys == ["action", "action_value"]
    assert (data["action"].shape, data["action_value"].shape) == ((6, 2), (6, 3, 2))
    torch.testing.assert_close(data["action_value"].exp().sum(-2), torch.ones(6, 2))
    assert OneHot(2).is_in(data["action"][0])


def test_an_actor_on_log_probabilities_leaves_them():
    network = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(-1, (3, 2)), nn.LogSoftmax(-2))
    keyed = TensorDictModule(network, ["pixels"], ["q"])
    actor = DistributionalQValueActor(keyed, SUPPORT, action_space="categorical", make_log_softmax=False)
    assert actor.in_keys == ["pixels"] and actor.out_keys == ["action", "q"]
    x = torch.randn(5, 4)
    torch.testing.assert_close(actor.forward_tensors(x)[1], network(x))


def test_the_support_travels_with_the_policy():
    actor = DistributionalQValueActor(MLP(in_features=4, out_features=(3, 2)), SUPPORT, action_space="one_hot").double()
    assert actor.module[-1].support.dtype == torch.float64
    assert any(key.endswith("support") for key in actor.state_dict())


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match=r"support=torch.linspace"):
        DistributionalQValueModule("one_hot")
    with pytest.raises(ValueError, match=r"\[2, 4, 3\] must be \[\*B, K, n\] for the 3 atoms"):
        DistributionalQValueModule("one_hot", SUPPORT).forward_tensors(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match="one_hot or categorical actions; got mult_one_hot"):
        QuantileQValueModule(spec=MultiOneHot([2, 2]))
    with pytest.raises(ValueError, match=r"must be \[\*B, K, n\]; got \[3\]"):
        DistributionalDQNnet().forward_tensors(torch.zeros(3))
    with pytest.raises(ValueError, match="out_keys=\\['a'\\]"):
        QuantileQValueModule("one_hot", out_keys=["a"])


# ---- implicit quantiles


def make_implicit():
    torch.manual_seed(0)
    return ImplicitQuantileNet(nn.Linear(3, 8), nn.Linear(8, 4), num_features=8, num_cosines=5)


def test_levels_are_embedded_by_cosines():
    net, x, taus = make_implicit(), torch.randn(2, 3), torch.rand(2, 6)
    expected = torch.empty(2, 6, 4)
    weight, bias = net.embedding.weight, net.embedding.bias
    for b in range(2):
        for n in range(6):
            cosines = [math.cos(math.pi * i * taus[b, n].item()) for i in range(5)]
            phi = torch.stack([sum(weight[j, i] * c for i, c in enumerate(cosines)) + bias[j] for j in range(8)]).relu()
            expected[b, n] = net.head(net.features(x[b]) * phi)
    torch.testing.assert_close(net(x, taus), expected)


def test_levels_may_be_the_same_for_all_rows():
    net, x, taus = make_implicit(), torch.randn(2, 7, 3), torch.rand(6)
    torch.testing.assert_close(net(x, taus), net(x, taus.expand(2, 7, 6)))
    with pytest.raises(ValueError, match=r"levels \[3, 6\] and features \[2, 7, 8\]"):
        net(x, torch.rand(3, 6))


def test_an_implicit_actor_acts_by_the_mean_at_the_midpoints():
    net, x = make_implicit(), torch.randn(9, 3)
    actor = ImplicitQuantileActor(net, num_taus=4, spec=OneHot(4))
    data = actor(TensorDict({"observation": x}, [9]))
    quantiles = net(x, torch.tensor([0.125, 0.375, 0.625, 0.875]))
    torch.testing.assert_close(data["action_value"], quantiles)
    assert torch.equal(data["action"].int().argmax(-1), quantiles.mean(-2).argmax(-1))
    assert actor.in_keys == ["observation"] and "taus" not in data
    with pytest.raises(ValueError, match="num_taus of at least 1; got 0"):
        ImplicitQuantileActor(net, num_taus=0, spec=OneHot(4))


# ---- what losses evaluate


ACTORS = {
    "values": lambda: QValueActor(nn.Linear(3, 4), action_space="one_hot"),
    "atoms": lambda: DistributionalQValueActor(
        MLP(in_features=3, out_features=(3, 4)), SUPPORT, action_space="one_hot"
    ),
    "quantiles": lambda: QuantileQValueActor(MLP(in_features=3, out_features=(5, 4)), action_space="one_hot"),
}


@pytest.mark.parametrize("kind", list(ACTORS))
def test_the_value_operator_gives_the_actors_values_without_choosing(kind):
    actor, x = ACTORS[kind](), torch.randn(6, 3)
    operator = actor.get_value_operator()
    assert operator.in_keys == ["observation"] and operator.out_keys == ["action_value"]
    torch.testing.assert_close(operator.forward_tensors(x)[0], actor.forward_tensors(x)[1])
    assert {id(p) for p in operator.parameters()} == {id(p) for p in actor.parameters()}
    twin = copy.deepcopy(actor)
    assert {id(p) for p in twin.get_value_operator().parameters()} == {id(p) for p in twin.parameters()}


def test_the_value_operator_of_an_implicit_actor_reads_levels():
    actor = ImplicitQuantileActor(make_implicit(), taus_key="levels", action_space="categorical")
    operator = actor.get_value_operator()
    assert operator.in_keys == ["observation", "levels"]
    assert operator.forward_tensors(torch.zeros(2, 3), torch.rand(2, 9))[0].shape == (2, 9, 4)


@pytest.mark.parametrize("kind", list(ACTORS))
def test_what_hooks_and_subclasses_add_is_not_skipped(kind):
    actor = ACTORS[kind]()
    handle = actor.register_forward_hook(lambda module, args, output: output)
    assert actor.get_value_operator() is actor
    handle.remove()
    assert actor.get_value_operator() is not actor

    class Own(QValueActor):
        def forward(self, tensordict):
            return super().forward(tensordict)

    own = Own(nn.Linear(3, 4), action_space="one_hot")
    assert own.get_value_operator() is own
