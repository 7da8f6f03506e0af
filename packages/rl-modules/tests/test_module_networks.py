"""MLP, ConvNet and NormalParamExtractor: shapes, layer order, arguments."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import NormalParamExtractor as TensorDictExtractor
from torch import nn

from rl_modules import MLP, ConvNet, NormalParamExtractor, NormalParamsWrapper


def kinds(net):
    return [type(layer).__name__ for layer in net]


def test_mlp_without_depth_is_one_linear_layer():
    assert kinds(MLP(3, 2)) == ["Linear"]


def test_mlp_depth_alone_gives_layers_of_32():
    net = MLP(3, 2, depth=2)
    assert [layer.out_features for layer in net if isinstance(layer, nn.Linear)] == [32, 32, 2]


def test_mlp_order_is_linear_dropout_norm_activation():
    net = MLP(3, 2, num_cells=[8], dropout=0.1, norm_class=nn.LayerNorm, activation_class=nn.ReLU)
    assert kinds(net) == ["Linear", "Dropout", "LayerNorm", "ReLU", "Linear"]


def test_mlp_activates_the_last_layer_on_request_and_drops_its_bias():
    net = MLP(3, 2, num_cells=[8], activate_last_layer=True, bias_last_layer=False, activation_class=nn.ELU)
    assert kinds(net) == ["Linear", "ELU", "Linear", "ELU"]
    assert net[0].bias is not None
    assert net[2].bias is None


def test_mlp_equals_the_same_layers_by_hand():
    net = MLP(3, 2, num_cells=[4])
    x = torch.randn(5, 3)
    expected = (x @ net[0].weight.T + net[0].bias).tanh() @ net[2].weight.T + net[2].bias
    torch.testing.assert_close(net(x), expected)


def test_mlp_finds_its_input_size_and_concatenates_inputs():
    net = MLP(out_features=2, num_cells=[4])
    assert net(torch.zeros(5, 6, 3), torch.zeros(5, 6, 1)).shape == (5, 6, 2)
    assert net[0].in_features == 4


def test_mlp_output_may_be_a_shape():
    assert MLP(3, (2, 5))(torch.zeros(7, 3)).shape == (7, 2, 5)


def test_mlp_takes_the_older_name_of_its_activation():
    assert kinds(MLP(num_cells=[64, 64], out_features=32, activation=nn.ELU)) == [
        "LazyLinear", "ELU", "Linear", "ELU", "Linear",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options, message",
    [({}, "out_features"), ({"out_features": 1, "num_cells": 8}, "no depth"),
     ({"out_features": 1, "num_cells": [8], "depth": 2}, "depth=2")],
)  # fmt: skip
def test_mlp_arguments_that_do_not_fit_raise(options, message):
    with pytest.raises(ValueError, match=message):
        MLP(3, **options)


def test_mlp_takes_arguments_per_layer():
    net = MLP(3, 2, num_cells=[4, 4], activation_class=nn.LeakyReLU, activation_kwargs=[{"negative_slope": s} for s in (0.1, 0.2)])  # fmt: skip  # noqa: E501
    assert [layer.negative_slope for layer in net if isinstance(layer, nn.LeakyReLU)] == [0.1, 0.2]


def test_convnet_accepts_any_number_of_batch_dims():
    net = ConvNet(num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1])
    pixels = torch.rand(2, 3, 4, 84, 84)
    features = net(pixels)
    assert features.shape == (2, 3, 64 * 7 * 7)
    torch.testing.assert_close(net(pixels[0, 1]), features[0, 1])
    torch.testing.assert_close(net(pixels[1]), features[1])


def test_convnet_defaults_are_three_layers_of_32_with_elu():
    net = ConvNet(in_features=3)
    assert kinds(net) == ["Conv2d", "ELU"] * 3 + ["SquashDims"]
    assert [layer.out_channels for layer in net if isinstance(layer, nn.Conv2d)] == [32, 32, 32]


def test_convnet_takes_the_arguments_that_readmes_pass():
    net = ConvNet(bias_last_layer=True, depth=None, num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1])
    assert net(torch.rand(1, 3, 84, 84)).shape == (1, 3136)


def test_convnet_lists_of_different_length_raise():
    with pytest.raises(ValueError, match="different numbers of layers"):
        ConvNet(num_cells=[8, 8], kernel_sizes=[3, 3, 3])


def test_convnet_squeezes_an_output_of_one_pixel_only():
    assert ConvNet(in_features=1, num_cells=[5], kernel_sizes=4, squeeze_output=True)(torch.rand(2, 1, 4, 4)).shape == (
        2,
        5,
    )
    with pytest.raises(ValueError, match="height and width 1"):
        ConvNet(in_features=1, num_cells=[5], squeeze_output=True)(torch.rand(2, 1, 4, 4))


def test_extractor_gives_scale_one_at_zero_and_a_positive_scale_everywhere():
    loc, scale = NormalParamExtractor()(torch.tensor([[0.3, 0.0], [0.3, -1e3]]))
    assert loc.tolist() == [[pytest.approx(0.3)], [pytest.approx(0.3)]]
    assert scale[0].item() == pytest.approx(1.0)
    assert scale[1].item() > 0


@pytest.mark.parametrize("mapping", ["biased_softplus_1.0", "biased_softplus_0.5_1e-6", "exp", "softplus", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extractor_equals_tensordicts(mapping, dtype):
    x = torch.linspace(-20, 20, 50, dtype=dtype).reshape(5, 10)
    for ours, theirs in zip(NormalParamExtractor(mapping)(x), TensorDictExtractor(mapping)(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_extractor_refuses_an_odd_number_of_features():
    with pytest.raises(ValueError, match="odd"):
        NormalParamExtractor()(torch.zeros(2, 3))


def test_extractor_passes_further_tensors_through():
    assert NormalParamExtractor()(torch.zeros(2), "state")[2] == "state"


def test_normal_params_wrapper_splits_a_networks_output():
    loc, scale = NormalParamsWrapper(MLP(4, 6))(torch.zeros(2, 4))
    assert loc.shape == scale.shape == (2, 3)
