"""Networks of agent groups: shapes, parameter counts, who depends on whom, and how parameters are drawn."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import SpecError
from rl_marl.networks.base import MultiAgentNetBase
from rl_marl.networks.convnet import MultiAgentConvNet
from rl_marl.networks.mlp import MultiAgentMLP
from rl_marl.networks.separate import BatchedNet, SeparateNets
from rl_modules import MLP, SafeModule

TABLE = [(False, False), (False, True), (True, False), (True, True)]
every_kind = pytest.mark.parametrize(("centralized", "share_params"), TABLE)


def make_mlp(centralized, share_params, n_agent_inputs=4, **options):
    options = {"depth": 2, "num_cells": 8, **options}
    torch.manual_seed(0)
    return MultiAgentMLP(n_agent_inputs, 2, 3, centralized=centralized, share_params=share_params, **options)


def make_conv(centralized, share_params, **options):
    options = {"in_features": 2, "num_cells": [4, 5], "kernel_sizes": 3, **options}
    torch.manual_seed(0)
    return MultiAgentConvNet(3, centralized, share_params, **options)


def count(net):
    return sum(parameter.numel() for parameter in net.parameters())


def influence(net, inputs):
    """[n, n] bool: does the output of the row's agent depend on the input of the column's?"""
    rows = []
    for agent in range(3):
        leaf = inputs.clone().requires_grad_()
        net(leaf)[0, agent].square().sum().backward()
        rows.append([bool((leaf.grad[0, other] != 0).any()) for other in range(3)])
    return rows


IDENTITY = [[row == column for column in range(3)] for row in range(3)]
EVERYTHING = [[True] * 3] * 3


@pytest.mark.parametrize(("kind", "parameters"), list(zip(TABLE, [390, 130, 582, 194], strict=True)))
def test_the_table_of_parameter_counts(kind, parameters):
    assert count(make_mlp(*kind)) == parameters
    lazy = make_mlp(*kind, n_agent_inputs=None)
    lazy(torch.zeros(5, 3, 4))
    assert count(lazy) == parameters


@every_kind
@pytest.mark.parametrize("batch", [(), (5,), (0,), (2, 5)])
def test_vectors_in_vectors_out(centralized, share_params, batch):
    assert make_mlp(centralized, share_params)(torch.zeros(*batch, 3, 4)).shape == (*batch, 3, 2)


@every_kind
@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_images_in_features_out(centralized, share_params, batch):
    # 12 -> 5 -> 2 pixels a side, 5 channels
    for net in (make_conv(centralized, share_params), make_conv(centralized, share_params, in_features=None)):
        assert net(torch.zeros(*batch, 3, 2, 12, 12)).shape == (*batch, 3, 20)


@every_kind
def test_an_output_depends_on_the_own_input_or_on_all(centralized, share_params):
    torch.manual_seed(1)
    expected = EVERYTHING if centralized else IDENTITY
    assert influence(make_mlp(centralized, share_params), torch.randn(2, 3, 4)) == expected
    assert influence(make_conv(centralized, share_params), torch.randn(2, 3, 2, 12, 12)) == expected


@every_kind
def test_outputs_equal_those_of_ordinary_nets_agent_by_agent(centralized, share_params):
    torch.manual_seed(1)
    vectors, images = torch.randn(5, 3, 4), torch.randn(5, 3, 2, 12, 12)
    for net, inputs in (
        (make_mlp(centralized, share_params), vectors),
        (make_conv(centralized, share_params), images),
    ):
        for agent in range(3):
            single = net.get_stateful_net(agent)
            own = inputs.flatten(1, 2) if centralized else inputs[:, agent]
            torch.testing.assert_close(net(inputs)[:, agent], single(own))


@every_kind
def test_gradients_equal_those_of_ordinary_nets(centralized, share_params):
    torch.manual_seed(1)
    net, inputs = make_mlp(centralized, share_params).double(), torch.randn(5, 3, 4, dtype=torch.float64)
    weights = torch.randn(5, 3, 2, dtype=torch.float64)
    (net(inputs) * weights).sum().backward()
    singles = [net.get_stateful_net(agent) for agent in range(3)]
    own = [inputs.flatten(1, 2) if centralized else inputs[:, agent] for agent in range(3)]
    sum((single(x) * weights[:, i]).sum() for i, (single, x) in enumerate(zip(singles, own, strict=True))).backward()
    for name, parameter in net.net.named_parameters():
        each = torch.stack([dict(single.named_parameters())[name].grad for single in singles])
        torch.testing.assert_close(parameter.grad, each.sum(0) if share_params else each)


def test_a_shared_centralized_net_gives_all_agents_one_output():
    torch.manual_seed(1)
    output = make_mlp(True, True)(torch.randn(5, 3, 4))
    assert torch.equal(output[:, 0], output[:, 1]) and torch.equal(output[:, 0], output[:, 2])


def test_separate_nets_differ_and_share_nothing():
    torch.manual_seed(1)
    for centralized in (False, True):
        net = make_mlp(centralized, False)
        inputs = torch.randn(5, 1, 4).expand(5, 3, 4)
        output = net(inputs)
        assert not torch.allclose(output[:, 0], output[:, 1])
        net(inputs)[:, 1].sum().backward()
        for parameter in net.parameters():
            assert (parameter.grad[1] != 0).any()
            assert (parameter.grad[0] == 0).all() and (parameter.grad[2] == 0).all()


@settings(deadline=None, max_examples=20)
@given(st.permutations([0, 1, 2]), st.sampled_from([make_mlp, make_conv]))
def test_permuting_agents_permutes_the_outputs_of_a_shared_net(order, make):
    net = make(False, True)
    torch.manual_seed(1)
    inputs = torch.randn(5, 3, 4) if make is make_mlp else torch.randn(5, 3, 2, 12, 12)
    torch.testing.assert_close(net(inputs[:, order]), net(inputs)[:, order])


@every_kind
def test_several_inputs_are_joined(centralized, share_params):
    torch.manual_seed(1)
    net, inputs = make_mlp(centralized, share_params), torch.randn(5, 3, 4)
    torch.testing.assert_close(net(inputs[..., :1], inputs[..., 1:]), net(inputs))
    conv, images = make_conv(centralized, share_params), torch.randn(5, 3, 2, 12, 12)
    torch.testing.assert_close(conv(images[:, :, :1], images[:, :, 1:]), conv(images))


@every_kind
def test_with_its_index_an_agent_may_differ_from_another_with_the_same_input(centralized, share_params):
    torch.manual_seed(1)
    same = torch.randn(5, 1, 4).expand(5, 3, 4)
    output = make_mlp(centralized, share_params, agent_id=True)(same)
    assert output.shape == (5, 3, 2)
    assert not torch.allclose(output[:, 0], output[:, 1])
    pixels = torch.randn(5, 1, 2, 12, 12).expand(5, 3, 2, 12, 12)
    output = make_conv(centralized, share_params, agent_id=True)(pixels)
    assert not torch.allclose(output[:, 0], output[:, 1])


def test_the_index_is_appended_one_hot():
    torch.manual_seed(1)
    net, inputs = make_mlp(False, True, agent_id=True), torch.randn(5, 3, 4)
    joined = torch.cat([inputs, torch.eye(3).expand(5, 3, 3)], -1)
    torch.testing.assert_close(net(inputs), net.get_stateful_net()(joined))
    net = make_mlp(True, True, agent_id=True)
    joint = inputs.flatten(1).unsqueeze(1).expand(5, 3, 12)
    joined = torch.cat([joint, torch.eye(3).expand(5, 3, 3)], -1)
    torch.testing.assert_close(net(inputs), net.get_stateful_net()(joined))


@every_kind
def test_masked_agents_count_as_zeros(centralized, share_params):
    torch.manual_seed(1)
    inputs, mask = torch.randn(5, 3, 4), torch.rand(5, 3) > 0.5
    zeros = inputs * mask.unsqueeze(-1)
    broken = inputs.masked_fill(~mask.unsqueeze(-1), float("nan"))
    net = make_mlp(centralized, share_params)
    torch.testing.assert_close(net(broken, mask=mask), net(zeros))
    images = torch.randn(5, 3, 2, 12, 12)
    conv = make_conv(centralized, share_params)
    torch.testing.assert_close(conv(images, mask=mask), conv(images * mask[:, :, None, None, None]))


def test_a_mask_may_be_read_from_the_batch():
    torch.manual_seed(1)
    net = make_mlp(True, True)
    batch = TensorDict({"agents": {"observation": torch.randn(5, 3, 4), "mask": torch.rand(5, 3) > 0.5}}, [5])
    keys = {"inputs": ("agents", "observation"), "mask": ("agents", "mask")}
    module = SafeModule(net, keys, ["value"])
    expected = net(batch["agents", "observation"], mask=batch["agents", "mask"])
    assert torch.equal(module(batch)["value"], expected)


@every_kind
def test_a_seed_fixes_the_parameters(centralized, share_params):
    first, second = make_mlp(centralized, share_params), make_mlp(centralized, share_params)
    again = make_mlp(centralized, share_params)
    torch.manual_seed(5)
    again.reset_parameters()
    for one, same, other in zip(first.parameters(), second.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, same) and not torch.equal(one, other)
    torch.manual_seed(5)
    second.reset_parameters()
    for one, other in zip(second.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_separate_nets_are_drawn_like_ordinary_layers(lazy, reset):
    torch.manual_seed(0)
    net = MultiAgentMLP(
        None if lazy else 100, 200, 3, centralized=False, share_params=False, num_cells=[], bias_last_layer=True
    )
    net(torch.zeros(1, 3, 100))
    if reset:
        net.reset_parameters()
    weight, bias = net.net[0].weight, net.net[0].bias
    assert weight.shape == (3, 200, 100) and bias.shape == (3, 200)
    for values in (*weight, *bias):
        assert values.abs().max() <= 0.1  # uniform in +-1/sqrt(100): variance 0.01 / 3
        assert math.isclose(values.var().item(), 0.01 / 3, rel_tol=0.2)
    assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize("reset", [False, True])
def test_separate_convolutions_are_drawn_like_ordinary_layers(reset):
    net = MultiAgentConvNet(3, False, False, in_features=4, num_cells=[100], kernel_sizes=5)
    if reset:
        net.reset_parameters()
    weight = net.net[0].weight
    assert weight.shape == (3, 100, 4, 5, 5)
    for values in weight:
        assert values.abs().max() <= 0.1  # fan in 4 * 5 * 5
        assert math.isclose(values.var().item(), 0.01 / 3, rel_tol=0.1)


@pytest.mark.parametrize(
    "options",
    [{"activation_class": nn.PReLU}, {"norm_class": nn.LayerNorm}, {"norm_class": nn.BatchNorm1d}],
    ids=["prelu", "layer_norm", "batch_norm"],
)
@every_kind
def test_any_layer_works_separate_or_shared(options, centralized, share_params):
    torch.manual_seed(1)
    net, inputs = make_mlp(centralized, share_params, **options), torch.randn(5, 3, 4)
    net.eval()
    assert isinstance(net.net, MLP if share_params else SeparateNets)
    for agent in range(3):
        own = inputs.flatten(1) if centralized else inputs[:, agent]
        torch.testing.assert_close(net(inputs)[:, agent], net.get_stateful_net(agent)(own))
    assert influence(net, inputs) == (EVERYTHING if centralized else IDENTITY)


def test_elementwise_layers_and_output_shapes_stay_batched():
    net = MultiAgentMLP(
        4, (2, 5), 3, centralized=False, share_params=False, num_cells=[8], activation_class=nn.ReLU, dropout=0.5
    )
    assert isinstance(net.net, BatchedNet)
    assert net(torch.zeros(7, 3, 4)).shape == (7, 3, 2, 5)


def test_the_text_tells_how_many_nets_there_are():
    assert "a separate net for each of 3 agents" in repr(make_mlp(False, False))
    assert "3 agents x (in_features=4, out_features=8)" in repr(make_mlp(False, False))
    assert "one net shared by 3 agents" in repr(make_mlp(True, True))
    assert "3 agents x (2, 4, kernel_size=(3, 3)" in repr(make_conv(False, False))
    assert "in_features=?" in repr(make_mlp(False, False, n_agent_inputs=None))


@every_kind
@pytest.mark.parametrize("make", [make_mlp, make_conv])
def test_it_can_be_copied_pickled_and_restored(centralized, share_params, make):
    torch.manual_seed(1)
    inputs = torch.randn(5, 3, 4) if make is make_mlp else torch.randn(5, 3, 2, 12, 12)
    net = make(centralized, share_params, agent_id=True)
    restored = make(centralized, share_params, agent_id=True)
    restored.reset_parameters()
    restored.load_state_dict(net.state_dict())
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), restored):
        assert torch.equal(other(inputs), net(inputs))


def test_a_lazy_net_restores_what_a_built_one_saved():
    for kind in TABLE:
        net, lazy = make_mlp(*kind), make_mlp(*kind, n_agent_inputs=None)
        lazy.load_state_dict(net.state_dict())
        inputs = torch.ones(5, 3, 4)
        assert torch.equal(lazy(inputs), net(inputs))


def test_weights_move_to_a_team_of_another_size():
    torch.manual_seed(1)
    small = make_mlp(False, True)
    large = MultiAgentMLP(4, 2, 7, centralized=False, share_params=True, depth=2, num_cells=8)
    large.from_stateful_net(small.get_stateful_net())
    inputs = torch.randn(5, 1, 4)
    torch.testing.assert_close(large(inputs.expand(5, 7, 4))[:, 6], small(inputs.expand(5, 3, 4))[:, 0])
    separate = make_mlp(False, False)
    before = separate(inputs.expand(5, 3, 4)).detach()
    separate.from_stateful_net(small.get_stateful_net(), agent=2)
    after = separate(inputs.expand(5, 3, 4))
    torch.testing.assert_close(after[:, 2], small(inputs.expand(5, 3, 4))[:, 2])
    torch.testing.assert_close(after[:, :2], before[:, :2])


def test_one_of_separate_nets_must_be_named():
    with pytest.raises(SpecError, match="3 separate nets"):
        make_mlp(False, False).get_stateful_net()
    with pytest.raises(SpecError, match="same layers"):
        make_mlp(False, False).from_stateful_net(MLP(4, 2), agent=0)


def test_both_spellings_name_one_argument():
    net = MultiAgentMLP(4, 2, 3, centralised=True, share_params=True, use_td_params=False)
    assert net.centralized
    with pytest.raises(TypeError, match="exactly one"):
        MultiAgentMLP(4, 2, 3, share_params=True)
    with pytest.raises(TypeError, match="exactly one"):
        MultiAgentMLP(4, 2, 3, centralized=True, centralised=True, share_params=True)
    with pytest.raises(TypeError, match="share_params"):
        MultiAgentConvNet(3, centralized=True)


@pytest.mark.parametrize(
    ("make", "shape", "said"),
    [
        (make_mlp, (5, 2, 4), "3 agents on dim -2"),
        (make_mlp, (4,), "3 agents on dim -2"),
        (make_mlp, (5, 3, 6), "4 features per agent"),
        (make_conv, (3, 2, 12), "3 agents on dim -4"),
        (make_conv, (5, 3, 1, 12, 12), "2 channels per agent"),
    ],
)
@every_kind
def test_inputs_that_do_not_fit_are_refused(make, shape, said, centralized, share_params):
    with pytest.raises(SpecError, match=said):
        make(centralized, share_params)(torch.zeros(shape))


def test_a_mask_that_does_not_fit_is_refused():
    with pytest.raises(SpecError, match=r"\[5, 3\]"):
        make_mlp(False, True)(torch.zeros(5, 3, 4), mask=torch.ones(5, 3, 1, dtype=torch.bool))
    with pytest.raises(SpecError, match="float32"):
        make_mlp(False, True)(torch.zeros(5, 3, 4), mask=torch.ones(5, 3))


def test_a_group_without_agents_is_refused():
    with pytest.raises(SpecError, match="n_agents=0"):
        MultiAgentMLP(4, 2, 0, centralized=False, share_params=True)


class Bilinear(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features))

    def forward(self, rows):
        return ((rows @ self.weight) * rows).sum(-1, keepdim=True)


class MultiAgentBilinear(MultiAgentNetBase):
    def __init__(self, features, n_agents, **options):
        super().__init__(n_agents=n_agents, agent_dim=-2, features=features, **options)

    def _build_single_net(self, *, device, features):
        return Bilinear(self.input_features(features)).to(device)


@every_kind
def test_a_net_of_ones_own_gets_all_four_kinds(centralized, share_params):
    torch.manual_seed(1)
    net, inputs = MultiAgentBilinear(4, 3, centralized=centralized, share_params=share_params), torch.randn(5, 3, 4)
    assert net(inputs).shape == (5, 3, 1)
    assert influence(net, inputs) == (EVERYTHING if centralized else IDENTITY)
    assert count(net) == (12 * 12 if centralized else 4 * 4) * (1 if share_params else 3)


class MultiAgentTanh(MultiAgentNetBase):
    def _build_single_net(self, *, device):
        return nn.Sequential(nn.Tanh())


def test_a_net_without_parameters_gives_each_agent_an_output_as_well():
    inputs = torch.linspace(-1, 1, 60).reshape(5, 3, 4)
    for centralized, share_params in TABLE:
        net = MultiAgentTanh(n_agents=3, agent_dim=-2, centralized=centralized, share_params=share_params)
        own = inputs.flatten(1).unsqueeze(1).expand(5, 3, 12) if centralized else inputs
        assert torch.equal(net(inputs), own.tanh())


@every_kind
def test_it_runs_inside_of_a_module_with_keys(centralized, share_params):
    net = make_mlp(centralized, share_params)
    module = TensorDictModule(net, [("agents", "observation")], [("agents", "value")])
    batch = module(TensorDict({"agents": TensorDict({"observation": torch.zeros(5, 3, 4)}, [5, 3])}, [5]))
    assert batch["agents", "value"].shape == (5, 3, 2)
