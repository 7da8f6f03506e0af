"""Behaviour cloning: likelihoods and distances against plain torch, padding, and shapes that would broadcast."""

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl_core import registry
from rl_core.errors import KeyMissingError, SpecError
from rl_core.testing import LossKit
from rl_objectives import BCLoss


class GaussianActor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.log_scale = nn.Parameter(torch.full((2,), -0.3))

    def get_dist(self, tensordict):
        return Independent(Normal(self.head(tensordict["observation"]), self.log_scale.exp()), 1)

    def forward(self, tensordict):
        return tensordict.set("action", self.get_dist(tensordict).mode)


class CategoricalActor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 4)

    def get_dist(self, tensordict):
        return Categorical(logits=self.head(tensordict["observation"]))


def plain_actor(outputs=2):
    return TensorDictModule(nn.Linear(3, outputs), in_keys=["observation"], out_keys=["action"])


def make_loss(actor=None, **options):
    torch.manual_seed(0)
    return BCLoss(GaussianActor() if actor is None else actor, **options)


def make_batch(size=8, dtype=torch.float32):
    torch.manual_seed(1)
    return TensorDict(
        {
            "observation": torch.randn(size, 3, dtype=dtype),
            "action": torch.randn(size, 2, dtype=dtype),
            "priority_weight": torch.rand(size, dtype=dtype),
        },
        [size],
    )


class TestBCKeepsItsPromises(LossKit):
    gradients = {"loss_bc": {"actor_network"}}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch()


class TestBCByDistanceKeepsItsPromises(TestBCKeepsItsPromises):
    network_outputs = {"action"}

    def make_loss(self, **options):
        torch.manual_seed(0)
        return BCLoss(plain_actor(), **options)


def check(loss, batch, expected):
    result = loss(batch)["loss_bc"]
    torch.testing.assert_close(result, expected)
    weights = [weight for weight in loss.parameters() if weight.requires_grad]
    for one, other in zip(
        torch.autograd.grad(result, weights, retain_graph=True, allow_unused=True),
        torch.autograd.grad(expected, weights, retain_graph=True, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_stochastic_policy_gets_the_negative_log_likelihood():
    loss, batch = make_loss().double(), make_batch(dtype=torch.float64)
    batch = batch.exclude("priority_weight")
    actor = loss.actor_network
    scale, loc = actor.log_scale.exp(), actor.head(batch["observation"])
    density = (-((batch["action"] - loc) ** 2) / (2 * scale**2)).exp() / (scale * (2 * torch.pi) ** 0.5)
    check(loss, batch, -density.log().sum(-1).mean())


def test_weights_multiply_the_rows_and_are_not_divided_out():
    loss, batch = make_loss(), make_batch()
    log_prob = loss.actor_network.get_dist(batch).log_prob(batch["action"])
    check(loss, batch, -(batch["priority_weight"] * log_prob).mean())


@pytest.mark.parametrize(
    ("name", "distance"),
    [
        (None, F.mse_loss),
        ("mse", F.mse_loss),
        ("l2", F.mse_loss),
        ("l1", F.l1_loss),
        ("smooth_l1", F.smooth_l1_loss),
        (lambda p, a: (p - a).abs(), F.l1_loss),
    ],
)
def test_a_deterministic_policy_gets_a_distance(name, distance):
    torch.manual_seed(0)
    loss, batch = BCLoss(plain_actor(), loss_function=name), make_batch().exclude("priority_weight")
    check(loss, batch, distance(loss.actor_network.module(batch["observation"]), batch["action"]))


def test_a_stochastic_policy_may_be_trained_by_the_distance_of_its_mode():
    loss, batch = make_loss(loss_function="l2"), make_batch().exclude("priority_weight")
    check(loss, batch, F.mse_loss(loss.actor_network.head(batch["observation"]), batch["action"]))


@pytest.mark.parametrize("form", ["index", "index_1", "one_hot", "one_hot_bool"])
def test_integer_actions_of_a_network_of_logits_get_the_cross_entropy(form):
    torch.manual_seed(0)
    index = torch.tensor([0, 3, 1, 2, 0, 0, 1, 3])
    one_hot = F.one_hot(index, 4)
    action = {"index": index, "index_1": index.unsqueeze(-1), "one_hot": one_hot, "one_hot_bool": one_hot.bool()}[form]
    loss, batch = BCLoss(plain_actor(4)), make_batch().exclude("priority_weight").set("action", action)
    check(loss, batch, F.cross_entropy(loss.actor_network.module(batch["observation"]), index))


def test_a_categorical_policy_gets_its_likelihood():
    torch.manual_seed(0)
    index = torch.tensor([0, 3, 1, 2, 0, 0, 1, 3])
    loss, batch = BCLoss(CategoricalActor()), make_batch().exclude("priority_weight").set("action", index)
    check(loss, batch, F.cross_entropy(loss.actor_network.head(batch["observation"]), index))


@pytest.mark.parametrize("steps_in_batch", [False, True])
def test_padding_of_chunks_does_not_count(steps_in_batch):
    torch.manual_seed(0)
    observation, action = torch.randn(4, 5, 3), torch.randn(4, 5, 2)
    padding = torch.arange(5) >= torch.tensor([[5], [1], [3], [2]])
    action[padding] = 1e3
    batch = TensorDict(
        {"observation": observation, "action": action, "pad_mask": padding}, [4, 5] if steps_in_batch else [4]
    )
    loss = BCLoss(plain_actor())
    error = (loss.actor_network.module(observation) - action).square().mean(-1)
    check(loss, batch, error[~padding].mean())
    batch["collector"] = {"mask": torch.tensor([True, True, False, True]).unsqueeze(-1).expand(4, 5)}
    if not steps_in_batch:
        batch["collector"] = {"mask": torch.tensor([True, True, False, True])}
    kept = ~padding & torch.tensor([[True], [True], [False], [True]])
    check(loss, batch, error[kept].mean())


@pytest.mark.parametrize("shape", [(8, 1), (8,), (1, 2), (8, 2, 1)])
@pytest.mark.parametrize("kind", [GaussianActor, plain_actor])
def test_actions_that_would_broadcast_are_refused(kind, shape):
    rows = [8] if shape[0] == 8 else []
    batch = TensorDict({"observation": torch.zeros(8, 3), "action": torch.zeros(shape)}, rows)
    with pytest.raises(SpecError, match="one shape"):
        BCLoss(kind())(batch)


def test_a_log_probability_per_feature_is_refused():
    class Unsummed(GaussianActor):
        def get_dist(self, tensordict):
            return Normal(self.head(tensordict["observation"]), self.log_scale.exp())

    with pytest.raises(SpecError, match="Independent"):
        BCLoss(Unsummed())(make_batch())


@pytest.mark.parametrize("action", [torch.zeros(8, 3, dtype=torch.long), torch.zeros(8, 4, 1, dtype=torch.long)])
def test_integer_actions_of_another_shape_are_refused(action):
    with pytest.raises(SpecError, match="one-hot"):
        BCLoss(plain_actor(4))(make_batch().set("action", action))


def test_options_are_checked():
    with pytest.raises(SpecError, match="'l3'"):
        BCLoss(plain_actor(), loss_function="l3")
    with pytest.raises(SpecError, match="get_dist"):
        BCLoss(plain_actor(), loss_function="nll")
    with pytest.raises(SpecError, match="pad_mask"):
        BCLoss(plain_actor())(make_batch().set("pad_mask", torch.ones(8)))
    with pytest.raises(KeyMissingError, match="demonstrations"):
        BCLoss(plain_actor())(make_batch().exclude("action"))


def test_bc_is_registered():
    assert registry.losses.get("bc") is BCLoss
