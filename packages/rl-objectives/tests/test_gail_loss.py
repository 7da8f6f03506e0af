"""The discriminator's loss against the paper's formula in plain torch, with its gradient penalty and its checks."""

import math

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import registry
from rl_core.errors import SpecError
from rl_core.testing import LossKit
from rl_objectives import GAILLoss
from rl_objectives.functional.gail import discriminator_loss


class Discriminator(nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
        self.end = nn.Identity() if logits else nn.Sigmoid()

    def forward(self, observation, action):
        return self.end(self.net(torch.cat([observation, action], -1)))


def make_loss(logits=False, **options):
    torch.manual_seed(0)
    network = TensorDictModule(Discriminator(logits), in_keys=["observation", "action"], out_keys=["d_logits"])
    return GAILLoss(network, from_logits=logits, **options)


def make_batch(size=8, dtype=torch.float32):
    torch.manual_seed(1)
    return TensorDict(
        {
            "observation": torch.randn(size, 3, dtype=dtype),
            "action": torch.randn(size, 2, dtype=dtype),
            "collector_observation": torch.randn(size, 3, dtype=dtype),
            "collector_action": torch.randn(size, 2, dtype=dtype),
        },
        [size],
    )


class TestGAILKeepsItsPromises(LossKit):
    gradients = {"loss": {"discriminator_network"}}
    network_outputs = {"discriminator_pred", "expert_action", "expert_observation"}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch()


class TestGAILOnLogitsKeepsItsPromises(TestGAILKeepsItsPromises):
    def make_loss(self, **options):
        return make_loss(logits=True, **options)


def reference(loss, batch, logits):
    """Ho and Ermon, 2016, eq. 16, with D the probability of the expert."""
    net = loss.discriminator_network.module.net
    expert = net(torch.cat([batch["observation"], batch["action"]], -1))
    policy = net(torch.cat([batch["collector_observation"], batch["collector_action"]], -1))
    return -(torch.sigmoid(expert).log() + (1 - torch.sigmoid(policy)).log()).mean()


@pytest.mark.parametrize("logits", [False, True])
def test_value_and_gradient_equal_the_cross_entropy_of_the_paper(logits):
    loss, batch = make_loss(logits).double(), make_batch(dtype=torch.float64)
    weights = list(loss.parameters())
    expected = reference(loss, batch, logits)
    result = loss(batch)["loss"]
    torch.testing.assert_close(result, expected)
    for one, other in zip(torch.autograd.grad(result, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("logits", [False, True])
def test_the_penalty_equals_the_slope_at_points_between_expert_and_policy(logits):
    loss, batch = make_loss(logits, use_grad_penalty=True, gp_lambda=3.0).double(), make_batch(dtype=torch.float64)
    torch.manual_seed(5)
    result = loss(batch)
    torch.manual_seed(5)
    share = torch.rand(8).double().unsqueeze(-1)
    network, penalties = loss.discriminator_network.module, []
    for i in range(8):
        between = [
            (share[i] * batch[name][i] + (1 - share[i]) * batch[f"collector_{name}"][i]).requires_grad_()
            for name in ("observation", "action")
        ]
        slope = torch.autograd.grad(network(*between).sum(), between, create_graph=True)
        penalties.append((torch.cat(slope).norm() - 1) ** 2)
    penalty = 3.0 * torch.stack(penalties).mean()
    expected = reference(loss, batch, logits) + penalty
    torch.testing.assert_close(result["gp_loss"], penalty.detach())
    torch.testing.assert_close(result["loss"], expected)
    weights = [loss.discriminator_network.module.net[0].weight, loss.discriminator_network.module.net[2].weight]
    for one, other in zip(
        torch.autograd.grad(result["loss"], weights), torch.autograd.grad(expected, weights), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_the_penalty_leaves_the_batch_without_gradients_and_works_without_grad():
    loss, batch = make_loss(use_grad_penalty=True), make_batch()
    with torch.no_grad():
        result = loss(batch)
    assert not result["loss"].requires_grad
    assert result["gp_loss"] > 0
    assert not any(value.requires_grad for value in batch.values())


def test_a_flat_discriminator_has_a_finite_penalty_gradient():
    loss = make_loss(use_grad_penalty=True)
    with torch.no_grad():
        for weight in loss.parameters():
            weight.zero_()
    result = loss(make_batch())
    result["loss"].backward()
    torch.testing.assert_close(result["gp_loss"], torch.tensor(10.0))
    assert all(weight.grad.isfinite().all() for weight in loss.parameters())


def test_a_certain_mistake_costs_much_but_not_infinitely_much():
    assert discriminator_loss(torch.tensor(0.0), torch.tensor(0.0)) == 100.0
    assert discriminator_loss(torch.tensor(1.0), torch.tensor(0.0)) == 0.0
    logits = discriminator_loss(torch.tensor(-300.0), torch.tensor(0.0), from_logits=True)
    torch.testing.assert_close(logits, torch.tensor(300.0 + math.log(2)))
    torch.testing.assert_close(
        discriminator_loss(torch.tensor(0.3), torch.tensor(0.2)),
        F.binary_cross_entropy(torch.tensor(0.3), torch.tensor(1.0))
        + F.binary_cross_entropy(torch.tensor(0.2), torch.tensor(0.0)),
    )


def test_logits_taken_for_probabilities_are_refused_with_the_cure():
    network = TensorDictModule(Discriminator(True), in_keys=["observation", "action"], out_keys=["d_logits"])
    with pytest.raises(SpecError, match="from_logits=True"):
        GAILLoss(network)(make_batch())


def test_a_discriminator_of_observations_alone_needs_no_actions():
    network = TensorDictModule(nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), ["observation"], ["d_logits"])
    loss, batch = GAILLoss(network), make_batch().exclude("action", "collector_action")
    assert loss(batch)["loss"].isfinite()


def test_keys_that_the_discriminator_does_not_read_are_named():
    loss = make_loss()
    loss.set_keys(expert_observation="pixels")
    with pytest.raises(SpecError, match=r'reads "observation".*expert_observation='):
        loss(make_batch())


@pytest.mark.parametrize(
    ("key", "shape"), [("collector_action", (8, 1)), ("collector_observation", (8, 1, 3)), ("collector_action", (8,))]
)
def test_a_policy_step_that_would_broadcast_is_refused(key, shape):
    batch = make_batch()
    batch[key] = torch.zeros(shape)
    with pytest.raises(SpecError, match=key):
        make_loss()(batch)


def test_an_answer_that_is_not_one_number_a_row_is_refused():
    network = TensorDictModule(nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()), ["observation"], ["d_logits"])
    with pytest.raises(SpecError, match="d_logits"):
        GAILLoss(network)(make_batch())


def test_gail_is_registered():
    assert registry.losses.get("gail") is GAILLoss
