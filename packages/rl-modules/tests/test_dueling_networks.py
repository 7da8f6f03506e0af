"""Dueling networks: eq. 9 of the paper, and that policies and losses can use them."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core.specs import OneHot
from rl_modules import DuelingCnnDQNet, DuelingMLP, DuelingMlpDQNet, DuelingNet, NoisyLinear, QValueActor

SMALL = {"in_features": 3, "num_cells": [8], "out_features": 8}


def test_values_are_the_state_value_plus_centred_advantages():
    net = DuelingNet(None, value=nn.Linear(3, 1), advantage=nn.Linear(3, 4))
    x = torch.randn(5, 3)
    value, advantage = net.value(x), net.advantage(x)
    expected = torch.stack([value[:, 0] + advantage[:, a] - advantage.mean(1) for a in range(4)], 1)
    torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(net(x).mean(-1, keepdim=True), value)


def test_a_constant_added_to_all_advantages_changes_nothing():
    net, x = DuelingMLP(4, mlp_kwargs_feature=SMALL), torch.randn(5, 3)
    before = net(x)
    with torch.no_grad():
        net.advantage[-1].bias += 7.0
    torch.testing.assert_close(net(x), before)


def test_a_multi_layer_perceptron_with_the_papers_defaults():
    net = DuelingMLP(4)
    assert net(torch.zeros(2, 7, 3)).shape == (2, 7, 4)
    widths = [layer.out_features for layer in net.modules() if isinstance(layer, nn.Linear)]
    assert sorted(widths) == [1, 4, 256, 256, 256, 256, 512, 512]
    assert DuelingMlpDQNet is DuelingMLP


def test_arguments_replace_the_defaults_one_by_one():
    net = DuelingMLP(
        4,
        mlp_kwargs_feature=SMALL,
        mlp_kwargs_output={"layer_class": NoisyLinear, "num_cells": [], "activation_class": nn.Tanh},
    )
    assert [type(layer) for layer in net.advantage] == [NoisyLinear]
    assert net(torch.zeros(2, 3)).shape == (2, 4)


def test_pixels_with_any_batch_dims():
    net = DuelingCnnDQNet(
        6, cnn_kwargs={"num_cells": [4, 4], "kernel_sizes": [4, 3], "strides": [2, 1]}, mlp_kwargs={"num_cells": [8]}
    )
    pixels = torch.randn(2, 3, 4, 16, 16)
    assert net(pixels).shape == (2, 3, 6)
    torch.testing.assert_close(net(pixels)[1, 2], net(pixels[1, 2]), atol=1e-5, rtol=1e-5)


def test_distributions_of_values_are_centred_over_actions():
    net, x = DuelingMLP((5, 4), mlp_kwargs_feature=SMALL), torch.randn(7, 3)
    assert net(x).shape == (7, 5, 4)
    torch.testing.assert_close(net(x).mean(-1, keepdim=True), net.value(net.features(x)))


def test_a_greedy_actor_on_a_dueling_network():
    actor = QValueActor(DuelingMLP(4, mlp_kwargs_feature=SMALL), spec=OneHot(4))
    data = actor(TensorDict({"observation": torch.randn(6, 3)}, [6]))
    assert data["action"].shape == (6, 4) and data["chosen_action_value"].shape == (6, 1)


def test_there_is_one_value_for_all_actions():
    with pytest.raises(ValueError, match="out_features_value=2"):
        DuelingMLP(4, out_features_value=2)
    with pytest.raises(ValueError, match=r"advantages \[5, 4\] the value must be \[5, 1\]; got \[5, 4\]"):
        DuelingNet(None, value=nn.Linear(3, 4), advantage=nn.Linear(3, 4))(torch.zeros(5, 3))
