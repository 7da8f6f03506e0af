"""Noisy layers: the paper's factorised noise, when it acts, and that each copy of a network keeps its own."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from rl_core.exploration import ExplorationType, set_exploration_type
from rl_modules import MLP, NoisyLazyLinear, NoisyLinear, reset_noise


def test_weights_are_means_plus_deviations_times_factorised_noise():
    layer, x = NoisyLinear(3, 2), torch.randn(5, 3)
    before, after = layer.noise[:3], layer.noise[3:]
    expected = torch.empty(5, 2)
    for row in range(5):
        for j in range(2):
            weights = [layer.weight_mu[j, i] + layer.weight_sigma[j, i] * after[j] * before[i] for i in range(3)]
            bias = layer.bias_mu[j] + layer.bias_sigma[j] * after[j]
            expected[row, j] = sum(w * x[row, i] for i, w in enumerate(weights)) + bias
    torch.testing.assert_close(layer(x), expected)


def test_the_noise_is_a_normal_variable_with_the_root_of_its_size():
    torch.manual_seed(0)
    layer = NoisyLinear(400, 400)
    draws = []
    for _ in range(25):
        layer.reset_noise()
        draws.append(layer.noise)
    drawn = torch.cat(draws)
    assert drawn.mean().abs() < 0.03
    # f(x)^2 = |x|, whose mean is sqrt(2 / pi); the share of |f(x)| < 1 is that of |x| < 1
    assert drawn.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), abs=0.02)
    assert (drawn.abs() < 1).float().mean().item() == pytest.approx(0.6827, abs=0.02)


def test_parameters_start_as_in_the_paper():
    torch.manual_seed(0)
    layer = NoisyLinear(16, 200, std_init=0.4)
    assert layer.weight_mu.abs().max() <= 0.25 and layer.weight_mu.abs().max() > 0.24
    assert (layer.weight_sigma == 0.1).all() and (layer.bias_sigma == 0.1).all()


def test_noise_stays_until_it_is_drawn_again_and_follows_the_seed():
    net, x = MLP(in_features=3, out_features=2, num_cells=[4], layer_class=NoisyLinear), torch.randn(5, 3)
    first = net(x)
    assert torch.equal(net(x), first)
    torch.manual_seed(1)
    reset_noise(net)
    second = net(x)
    assert not torch.equal(second, first)
    torch.manual_seed(1)
    reset_noise(net)
    assert torch.equal(net(x), second)


def test_evaluation_uses_the_means():
    layer, x = NoisyLinear(3, 2), torch.randn(5, 3)
    assert not torch.allclose(layer(x), nn.functional.linear(x, layer.weight_mu, layer.bias_mu))
    assert torch.equal(layer.eval()(x), nn.functional.linear(x, layer.weight_mu, layer.bias_mu))


def test_a_loss_that_runs_deterministically_still_trains_the_deviations():
    layer = NoisyLinear(3, 2)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        layer(torch.ones(1, 3)).sum().backward()
    assert layer.weight_sigma.grad is not None and layer.bias_sigma.grad is not None


def test_the_exploration_type_is_obeyed_where_that_is_wanted():
    layer, x = NoisyLinear(3, 2, use_exploration_type=True), torch.randn(5, 3)
    noisy = layer(x)
    with set_exploration_type(ExplorationType.RANDOM):
        assert torch.equal(layer(x), noisy)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert torch.equal(layer(x), nn.functional.linear(x, layer.weight_mu, layer.bias_mu))
    assert not layer.eval().is_noisy()


def test_noise_is_no_parameter_or_buffer_but_part_of_the_state():
    layer = NoisyLinear(3, 2)
    assert {name for name, _ in layer.named_parameters()} == {"weight_mu", "weight_sigma", "bias_mu", "bias_sigma"}
    assert not list(layer.buffers())
    other = NoisyLinear(3, 2)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(other(x), layer(x))
    other.reset_noise()
    assert not torch.equal(other(x), layer(x))


def test_copies_and_moves_take_the_noise_along():
    layer = NoisyLinear(3, 2)
    twin = copy.deepcopy(layer).double()
    assert twin.noise.dtype == torch.float64
    torch.testing.assert_close(twin.noise.float(), layer.noise)
    twin.reset_noise()
    assert not torch.equal(twin.noise.float(), layer.noise)
    assert twin(torch.randn(4, 3).double()).dtype == torch.float64


def test_without_a_bias_there_is_none():
    layer = NoisyLinear(3, 2, bias=False)
    assert layer.bias_mu is None and len(list(layer.parameters())) == 2
    assert torch.equal(layer(torch.zeros(1, 3)), torch.zeros(1, 2))


@pytest.mark.parametrize("bias", [True, False])
def test_a_lazy_layer_finds_its_inputs(bias):
    torch.manual_seed(0)
    layer = NoisyLazyLinear(2, bias=bias)
    assert layer(torch.zeros(5, 3)).shape == (5, 2)
    assert type(layer) is NoisyLinear and layer.in_features == 3 and layer.noise.shape == (5,)
    assert layer.weight_sigma.flatten()[0].item() == pytest.approx(0.5 / math.sqrt(3))
    assert (layer.bias_mu is not None) == bias
    layer(torch.ones(5, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
