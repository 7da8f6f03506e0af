"""The losses of sequence policies, plain and online: values, gradients, padding, and the price of entropy."""

import math

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_core import registry
from rl_core.errors import SpecError
from rl_core.testing import LossKit
from rl_core.testing.kit import overrides_check
from rl_objectives import DTLoss, OnlineDTLoss

KEYS = ["observation", "action", "return_to_go"]


class Sequence(nn.Module):
    """A causal network over windows: each step sees the mean of the steps so far."""

    def __init__(self, outputs=2):
        super().__init__()
        self.net = nn.Linear(6, outputs)

    def forward(self, observation, action, return_to_go):
        taken = F.pad(action, (0, 0, 1, 0))[..., :-1, :]
        seen = torch.cat([observation, taken, return_to_go], -1)
        count = torch.arange(1, seen.shape[-2] + 1, dtype=seen.dtype).unsqueeze(-1)
        return self.net(seen.cumsum(-2) / count)


def sequence_policy():
    return TensorDictModule(Sequence(), in_keys=KEYS, out_keys=["action"])


class SequenceActor(nn.Module):
    in_keys = tuple(KEYS)
    out_keys = ("action",)

    def __init__(self, squashed=False):
        super().__init__()
        self.net = Sequence()
        self.log_scale = nn.Parameter(torch.tensor([-0.3, 0.2]))
        self.squashed = squashed

    def get_dist(self, tensordict):
        normal = Normal(self.net(*(tensordict[key] for key in KEYS)), self.log_scale.exp())
        if self.squashed:
            normal = TransformedDistribution(normal, TanhTransform(cache_size=1))
        return Independent(normal, 1)


def make_dt(**options):
    torch.manual_seed(0)
    return DTLoss(sequence_policy(), **options)


def make_online(squashed=False, **options):
    torch.manual_seed(0)
    return OnlineDTLoss(SequenceActor(squashed), **options)


def make_batch(rows=6, steps=4, dtype=torch.float32, batch_dims=1):
    torch.manual_seed(1)
    return TensorDict(
        {
            "observation": torch.randn(rows, steps, 3, dtype=dtype),
            "action": torch.rand(rows, steps, 2, dtype=dtype) * 1.6 - 0.8,
            "return_to_go": torch.randn(rows, steps, 1, dtype=dtype),
        },
        [rows, steps][:batch_dims],
    )


class TestDTKeepsItsPromises(LossKit):
    gradients = {"loss": {"actor_network"}}
    network_outputs = {"action_pred", "action_target"}

    def make_loss(self, **options):
        return make_dt(**options)

    def make_batch(self):
        return make_batch().set("priority_weight", torch.rand(6))

    @overrides_check(reason="the shape that the windows share includes their steps")
    def test_keyword_tensors_give_the_same_losses(self):
        loss, batch = self.make_loss(), make_batch()
        tensors = {key: batch[key] for key in KEYS}
        torch.testing.assert_close(loss(**tensors)[0], loss(batch)["loss"])


class TestOnlineDTKeepsItsPromises(LossKit):
    gradients = {"loss_log_likelihood": {"actor_network"}, "loss_entropy": {"actor_network"}, "loss_alpha": set()}
    network_outputs = {"action_pred", "action_target"}

    def make_loss(self, **options):
        return make_online(**options)

    def make_batch(self):
        return make_batch().set("priority_weight", torch.rand(6))

    @overrides_check(reason="the shape that the windows share includes their steps")
    def test_keyword_tensors_give_the_same_losses(self):
        loss, batch = self.make_loss(), make_batch()
        values = loss(**{key: batch[key] for key in KEYS})
        for key, value in zip(loss.out_keys, values, strict=True):
            torch.testing.assert_close(value, loss(batch)[key])

    @overrides_check(reason="the temperature is a parameter that belongs to no network")
    def test_each_loss_moves_its_networks_and_no_other(self):
        loss, batch = self.make_loss(), self.make_batch()
        for key in self.gradients:
            loss.zero_grad()
            self.losses(loss, batch)[key].backward()
            moved = {name for name, weight in loss.named_parameters() if weight.grad is not None and weight.grad.any()}
            expected = {"log_alpha"} if key == "loss_alpha" else {"actor_network"}
            assert {name.split(".")[0] for name in moved} == expected


def check(loss, batch, expected):
    result = loss(batch)
    for key, value in expected.items():
        torch.testing.assert_close(result[key], value)
    weights = list(loss.parameters())
    ours = sum(value for key, value in result.items() if key.startswith("loss"))
    theirs = sum(value for key, value in expected.items() if key.startswith("loss"))
    for one, other in zip(
        torch.autograd.grad(ours, weights), torch.autograd.grad(theirs, weights, retain_graph=True), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("batch_dims", [1, 2])
@pytest.mark.parametrize(("name", "distance"), [("l2", F.mse_loss), ("l1", F.l1_loss), ("smooth_l1", F.smooth_l1_loss)])
def test_the_plain_loss_is_the_distance_to_the_datasets_actions(name, distance, batch_dims):
    loss, batch = make_dt(loss_function=name).double(), make_batch(dtype=torch.float64, batch_dims=batch_dims)
    predicted = loss.actor_network.module(*(batch[key] for key in KEYS))
    check(loss, batch, {"loss": distance(predicted, batch["action"])})


@pytest.mark.parametrize("key", [("collector", "mask"), "mask"])
def test_padding_does_not_count_and_weighs_steps_not_rows(key):
    loss, batch = make_dt(), make_batch()
    valid = torch.arange(4) < torch.tensor([[4], [1], [3], [2], [4], [0]])
    error = (loss.actor_network.module(*(batch[name] for name in KEYS)) - batch["action"]).square().mean(-1)
    loss.set_keys(mask=key)
    batch[key] = valid
    check(loss, batch, {"loss": error[valid].sum() / 14})
    rows = make_dt(reduction="none")
    rows.set_keys(mask=key)
    assert torch.equal(rows(batch)["loss"] != 0, valid)


def reference_online(loss, batch, target):
    """Zheng et al., 2022, eq. 2 to 5, for a normal, whose entropy has a closed form."""
    actor = loss.actor_network
    loc, scale = actor.net(*(batch[key] for key in KEYS)), actor.log_scale.exp()
    log_prob = (-((batch["action"] - loc) ** 2) / (2 * scale**2) - scale.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
    entropy = (0.5 * math.log(2 * math.pi * math.e) + scale.log()).sum()
    price = loss.log_alpha.exp()
    return {
        "loss_log_likelihood": -log_prob.mean(),
        "loss_entropy": -price.detach() * entropy,
        "loss_alpha": price * (entropy.detach() - target),
        "alpha": price.detach(),
        "entropy": entropy.detach(),
    }


@pytest.mark.parametrize("batch_dims", [1, 2])
@pytest.mark.parametrize("target", ["auto", 0.7])
def test_the_online_loss_equals_the_paper(target, batch_dims):
    loss = make_online(target_entropy=target, alpha_init=0.3).double()
    batch = make_batch(dtype=torch.float64, batch_dims=batch_dims)
    check(loss, batch, reference_online(loss, batch, -2.0 if target == "auto" else target))


def test_an_entropy_without_closed_form_is_sampled_with_its_gradient():
    loss, batch = make_online(squashed=True, samples_mc_entropy=5), make_batch()
    torch.manual_seed(2)
    value = loss(batch)["loss_entropy"]
    torch.manual_seed(2)
    distribution = loss.actor_network.get_dist(batch)
    expected = distribution.log_prob(distribution.rsample((5,))).mean()
    torch.testing.assert_close(value, expected)
    weights = list(loss.actor_network.parameters())
    for one, other in zip(torch.autograd.grad(value, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(one, other)


def test_the_price_of_entropy_rises_when_there_is_too_little():
    for target, sign in ((100.0, -1), (-100.0, 1)):
        loss = make_online(target_entropy=target)
        loss(make_batch())["loss_alpha"].backward()
        assert torch.sign(loss.log_alpha.grad) == sign


def test_alpha_stays_in_its_bounds_and_may_be_fixed():
    loss = make_online(alpha_init=0.5, min_alpha=0.1, max_alpha=1.0)
    with torch.no_grad():
        loss.log_alpha.fill_(-9.0)
    torch.testing.assert_close(loss(make_batch())["alpha"], torch.tensor(0.1))
    fixed = make_online(fixed_alpha=True, alpha_init=0.5)
    assert "log_alpha" not in dict(fixed.named_parameters())
    assert fixed(make_batch())["loss_alpha"] == 0
    torch.testing.assert_close(fixed(make_batch())["alpha"], torch.tensor(0.5))


def test_padding_does_not_count_for_likelihood_and_entropy():
    loss, batch = make_online(), make_batch()
    valid = torch.arange(4) < torch.tensor([[4], [1], [3], [2], [4], [0]])
    log_prob = loss.actor_network.get_dist(batch).log_prob(batch["action"])
    loss.set_keys(mask="mask")
    result = loss(batch.set("mask", valid))
    torch.testing.assert_close(result["loss_log_likelihood"], -log_prob[valid].mean())
    assert result["loss_entropy"].isfinite()


@pytest.mark.parametrize("make", [make_dt, make_online])
@pytest.mark.parametrize("shape", [(6, 4, 1), (6, 1, 2), (6, 4), (1, 4, 2)])
def test_actions_that_would_broadcast_are_refused(make, shape):
    loss = make()
    loss.set_keys(action_target="wanted")
    batch = make_batch()
    batch.batch_size = []
    with pytest.raises(SpecError, match="wanted"):
        loss(batch.set("wanted", torch.zeros(shape)))


def test_options_are_checked():
    with pytest.raises(SpecError, match="'l3'"):
        make_dt(loss_function="l3")
    for options in (
        {"alpha_init": 0.0},
        {"alpha_init": 0.5, "min_alpha": 0.6},
        {"min_alpha": 0.0},
        {"alpha_init": 0.5, "max_alpha": 0.4},
        {"target_entropy": "most"},
        {"samples_mc_entropy": 0},
    ):
        with pytest.raises(SpecError):
            make_online(**options)
    with pytest.raises(SpecError, match="get_dist"):
        OnlineDTLoss(sequence_policy())


def test_the_losses_are_registered():
    assert registry.losses.get("dt") is DTLoss
    assert registry.losses.get("online_dt") is OnlineDTLoss
