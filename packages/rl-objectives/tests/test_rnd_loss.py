"""The predictor's loss of random network distillation: value, gradient, the fraction of rows, and the frozen target."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import registry
from rl_core.errors import SpecError
from rl_core.testing import LossKit
from rl_objectives import RNDLoss


def make_loss(**options):
    torch.manual_seed(0)
    return RNDLoss(nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 4), nn.Tanh()), **{"update_fraction": 1.0, **options})


def make_batch(size=8):
    torch.manual_seed(1)
    return TensorDict({"next": {"observation": torch.randn(size, 3) * 3}}, [size])


class TestRNDKeepsItsPromises(LossKit):
    gradients = {"loss_predictor": {"predictor_network"}}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch()


def test_value_and_gradient_equal_the_mean_squared_error_to_the_target():
    loss, batch = make_loss().double(), make_batch().double()
    observation = batch["next", "observation"]
    weight, bias = loss.predictor_network.weight, loss.predictor_network.bias
    layer = loss.target_network[0]
    wanted = (observation @ layer.weight.T + layer.bias).tanh()
    expected = ((observation @ weight.T + bias - wanted) ** 2).sum(-1).mean() / 4
    result = loss(batch)["loss_predictor"]
    torch.testing.assert_close(result, expected)
    for one, other in zip(
        torch.autograd.grad(result, [weight, bias]), torch.autograd.grad(expected, [weight, bias]), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_only_a_fraction_of_the_valid_rows_is_trained_on():
    batch = make_batch(4000)
    rows = make_loss(update_fraction=0.25, reduction="none")(batch)["loss_predictor"]
    full = make_loss(reduction="none")(batch)["loss_predictor"]
    kept = rows != 0
    assert abs(kept.float().mean() - 0.25) < 0.04
    torch.testing.assert_close(rows[kept], full[kept])
    torch.manual_seed(3)
    mean = make_loss(update_fraction=0.25)
    torch.manual_seed(3)
    value = mean(batch)["loss_predictor"]
    torch.manual_seed(3)
    drawn = torch.rand(4000) < 0.25
    torch.testing.assert_close(value, full[drawn].mean())


def test_observations_are_standardised_and_clipped():
    class Standard(nn.Module):
        def forward(self, observation):
            return observation / 2

    loss, batch = make_loss(obs_rms=Standard(), obs_clip=0.5), make_batch()
    plain = make_loss()
    given = TensorDict({"next": {"observation": (batch["next", "observation"] / 2).clamp(-0.5, 0.5)}}, [8])
    assert torch.equal(loss(batch)["loss_predictor"], plain(given)["loss_predictor"])


def test_the_target_is_a_frozen_copy_in_the_state_dict():
    target = nn.Linear(3, 4)
    loss = RNDLoss(nn.Linear(3, 4), target, update_fraction=1.0)
    before = loss(make_batch())["loss_predictor"]
    with torch.no_grad():
        target.weight.add_(1.0)
    assert torch.equal(loss(make_batch())["loss_predictor"], before)
    assert {"target_network.weight", "predictor_network.weight"} <= set(loss.state_dict())
    assert {name for name, _ in loss.named_parameters()} == {"predictor_network.weight", "predictor_network.bias"}
    assert set(loss.predictor_network_params.keys()) == {"weight", "bias"}


def test_no_row_gives_a_loss_of_zero_and_a_finite_gradient():
    loss, batch = make_loss(), make_batch()
    batch["collector"] = {"mask": torch.zeros(8, dtype=torch.bool)}
    value = loss(batch)["loss_predictor"]
    value.backward()
    assert value == 0
    assert all((weight.grad == 0).all() for weight in loss.parameters())


def test_what_cannot_work_is_refused():
    net = nn.Linear(3, 4)
    with pytest.raises(SpecError, match="two networks"):
        RNDLoss(net, net)
    with pytest.raises(SpecError, match="update_fraction"):
        RNDLoss(net, nn.Linear(3, 4), update_fraction=0.0)
    with pytest.raises(SpecError, match="one shape"):
        RNDLoss(net, nn.Linear(3, 1), update_fraction=1.0)(make_batch())


def test_rnd_is_registered():
    assert registry.losses.get("rnd") is RNDLoss
