"""Several perceptrons as one network: the numbers, gradients and layers of its members."""

import copy

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core.errors import SpecError
from rl_core.losses.ensembles import Stackable
from rl_core.registry import registry
from rl_modules import MLP, BatchedMLP, ValueOperator
from rl_modules.networks import ensemble


def members(count=3, **options):
    torch.manual_seed(0)
    options = {"in_features": 5, "out_features": 2, "num_cells": [6, 7], **options}
    return [MLP(**options) for _ in range(count)]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_class": nn.ReLU, "norm_class": nn.LayerNorm},
        {"norm_class": nn.LayerNorm, "norm_kwargs": [{"normalized_shape": 6, "bias": False}, {"normalized_shape": 7}]},
        {
            "norm_class": nn.LayerNorm,
            "num_cells": [4],
            "norm_kwargs": {"normalized_shape": 4, "elementwise_affine": False},
        },
        {"bias_last_layer": False, "activation_class": nn.SiLU, "activate_last_layer": True},
    ],
)
@pytest.mark.parametrize("shape", [(8,), (2, 3), ()])
def test_outputs_and_gradients_are_those_of_the_members(options, shape, one_by_one, monkeypatch):
    monkeypatch.setattr(ensemble, "_LARGE", 0 if one_by_one else 1 << 60)
    nets = members(**options)
    together = nets[0].stacked(nets)
    assert isinstance(together, BatchedMLP) and together.num_copies == 3
    first, second = torch.randn(*shape, 3), torch.randn(*shape, 2, requires_grad=True)
    outputs = together(first, second)
    expected = torch.stack([net(first, second) for net in nets])
    torch.testing.assert_close(outputs, expected)
    factor = torch.randn_like(outputs)
    (by_all,) = torch.autograd.grad((outputs * factor).sum(), [second], retain_graph=True)
    (by_each,) = torch.autograd.grad((expected * factor).sum(), [second], retain_graph=True)
    torch.testing.assert_close(by_all, by_each)
    (outputs * factor).sum().backward()
    (expected * factor).sum().backward()
    by_member = [dict(net.named_parameters()) for net in nets]
    for name, parameter in together.named_parameters():
        gradients = torch.stack([named[name.removeprefix("layers.")].grad for named in by_member])
        torch.testing.assert_close(parameter.grad, gradients)
    for count in (1, 2):
        together.active = count
        torch.testing.assert_close(together(first, second), expected[:count])


def test_wide_layers_take_the_other_path_by_themselves():
    wide, narrow = BatchedMLP(2, in_features=128, out_features=128), BatchedMLP(2, in_features=8, out_features=8)
    assert wide._largest >= ensemble._LARGE > narrow._largest


def test_each_member_is_drawn_for_itself():
    net = BatchedMLP(3, in_features=4, out_features=1, num_cells=[8])
    weight = net.layers[0].weight
    assert weight.shape == (3, 8, 4) and not torch.equal(weight[0], weight[1])
    assert registry.modules.get("batched_mlp") is BatchedMLP


def test_weights_are_copies_that_keep_their_flags_and_mode():
    nets = members()
    for net in nets:
        net[0].weight.requires_grad_(False)
        net.eval()
    together = nets[0].stacked(nets)
    assert not together.layers[0].weight.requires_grad and together.layers[0].bias.requires_grad
    assert not together.training
    with torch.no_grad():
        nets[1][0].weight.add_(1)
    assert not torch.equal(together.layers[0].weight[1], nets[1][0].weight)


def test_dropout_is_batched_and_follows_the_mode():
    nets = members(dropout=0.5)
    together = nets[0].stacked(nets).eval()
    for net in nets:
        net.eval()
    rows = torch.randn(8, 5)
    torch.testing.assert_close(together(rows), torch.stack([net(rows) for net in nets]))
    together.train()
    assert not torch.equal(together(rows), together(rows))


def test_what_cannot_be_batched_stays_apart():
    assert isinstance(MLP(3, 1), Stackable)
    batch_norm = members(norm_class=nn.BatchNorm1d)
    assert batch_norm[0].stacked(batch_norm) is None
    shaped = members(out_features=(2, 3))
    assert shaped[0].stacked(shaped) is None
    hooked = members()
    hooked[0][1].register_forward_hook(lambda module, inputs, output: output + 1)
    assert hooked[0].stacked(hooked) is None

    class Twice(MLP):
        def forward(self, *inputs):
            return 2 * super().forward(*inputs)

    twice = [Twice(5, 1) for _ in range(2)]
    assert twice[0].stacked(twice) is None
    with pytest.raises(SpecError, match=r"Linear, BatchNorm1d, Tanh, Linear: it knows nn\.Linear"):
        BatchedMLP(2, in_features=3, out_features=1, num_cells=[4], norm_class=nn.BatchNorm1d)
    with pytest.raises(SpecError, match="needs in_features"):
        BatchedMLP(2, out_features=1)
    with pytest.raises(SpecError, match="num_copies=0"):
        BatchedMLP(0, in_features=1, out_features=1)


def test_it_serves_as_a_critic_on_bare_tensors():
    critic = ValueOperator(BatchedMLP(4, in_features=5, out_features=1), in_keys=["observation", "action"])
    (value,) = critic.forward_tensors(torch.randn(8, 3), torch.randn(8, 2))
    assert value.shape == (4, 8, 1)
    alone = ValueOperator(MLP(in_features=5, out_features=1), in_keys=["observation", "action"])
    batch = TensorDict({"observation": torch.randn(8, 3), "action": torch.randn(8, 2)}, [8])
    assert alone(batch)["state_action_value"].shape == (8, 1)


def test_it_is_copied_saved_and_compiled():
    net = BatchedMLP(2, in_features=3, out_features=1, num_cells=[4])
    twin = copy.deepcopy(net)
    rows = torch.randn(6, 3)
    torch.testing.assert_close(twin(rows), net(rows))
    other = BatchedMLP(2, in_features=3, out_features=1, num_cells=[4])
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other(rows), net(rows))
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(rows), net(rows))
