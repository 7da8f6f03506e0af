"""Advantage-weighted actor-critic against the paper's equations in plain torch."""

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal

from rl_core import registry
from rl_core.errors import SpecError
from rl_core.testing import LossKit
from rl_core.testing.kit import overrides_check
from rl_objectives import AWACLoss, SoftUpdate


class GridNormal(Independent):
    """A normal whose draws are fixed quantiles, so that a loss has one value."""

    def rsample_and_log_prob(self, shape=()):
        normal = self.base_dist
        steps = torch.linspace(-0.5, 1, shape[0], dtype=normal.loc.dtype).view(-1, *[1] * normal.loc.ndim)
        value = normal.loc + normal.scale * steps
        return value, self.log_prob(value)


class Actor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.log_scale = nn.Parameter(torch.tensor([-0.5, 0.1]))

    def get_dist(self, tensordict):
        return GridNormal(Normal(self.head(tensordict["observation"]), self.log_scale.exp()), 1)


class Critic(nn.Module):
    def __init__(self, cells):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, cells), nn.Tanh(), nn.Linear(cells, 1))

    def forward(self, observation, action):
        return self.net(torch.cat([observation, action], -1))


def critic(cells):
    return TensorDictModule(Critic(cells), in_keys=["observation", "action"], out_keys=["state_action_value"])


def make_loss(**options):
    torch.manual_seed(0)
    loss = AWACLoss(Actor(), [critic(5), critic(4)], **{"temperature": 0.5, "num_samples": 4, **options})
    with torch.no_grad():
        for pair in loss.target_pairs():
            pair.tensors()[1].add_(torch.randn_like(pair.tensors()[1]) * 0.3)
    return loss


def make_batch(size=12, dtype=torch.float32):
    torch.manual_seed(1)
    terminated = torch.rand(size, 1) < 0.3
    step = {
        "observation": torch.randn(size, 3, dtype=dtype),
        "reward": torch.randn(size, 1, dtype=dtype),
        "terminated": terminated,
        "done": terminated | (torch.rand(size, 1) < 0.3),
    }
    root = {"observation": torch.randn(size, 3, dtype=dtype), "action": torch.rand(size, 2, dtype=dtype) * 2 - 1}
    return TensorDict({**root, "next": step}, [size])


class TestAWACKeepsItsPromises(LossKit):
    gradients = {"loss_actor": {"actor_network"}, "loss_qvalue": {"qvalue_network"}}
    network_outputs = {"state_action_value", "action"}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch().set("gamma", torch.rand(12, 1)).set("priority_weight", torch.rand(12, 1))

    @overrides_check(reason="priorities are written into the batch, and nothing else")
    def test_the_batch_is_left_alone(self):
        batch = self.make_batch()
        before = batch.clone()
        self.run(self.make_loss(), batch)
        assert set(batch.keys(True, True)) - set(before.keys(True, True)) == {"td_error"}
        assert (batch.exclude("td_error") == before).all()


@pytest.mark.parametrize("delay_actor", [False, True])
@pytest.mark.parametrize("samples", [1, 4])
def test_values_and_gradients_equal_the_paper(samples, delay_actor):
    loss = make_loss(num_samples=samples, delay_actor=delay_actor).double()
    loss.make_value_estimator(gamma=0.9)
    batch = make_batch(dtype=torch.float64)
    actor, now, after = loss.actor_network, batch["observation"], batch["next", "observation"]
    nets = [net.module for net in loss.qvalue_network.members]
    frozen = [net.module for net in loss.target_qvalue_network.members]
    scale = actor.log_scale.exp()
    policy = loss.target_actor_network if delay_actor else actor
    following = policy.head(after) + policy.log_scale.exp() * -0.5
    value = torch.min(*[net(after, following) for net in frozen])
    target = (batch["next", "reward"] + 0.9 * (~batch["next", "terminated"]) * value).detach()
    loss_qvalue = sum(F.smooth_l1_loss(net(now, batch["action"]), target) for net in nets)
    noises = [-0.5] if samples == 1 else torch.linspace(-0.5, 1, samples, dtype=torch.float64)
    drawn = [actor.head(now) + scale * noise for noise in noises]
    baseline = sum(torch.min(*[net(now, action) for net in nets]) for action in drawn) / samples
    advantage = (torch.min(*[net(now, batch["action"]) for net in nets]) - baseline).detach().squeeze(-1)
    log_prob = Normal(actor.head(now), scale).log_prob(batch["action"]).sum(-1)
    loss_actor = -((advantage / 0.5).exp().clamp(max=100) * log_prob).mean()
    result = loss(batch)
    torch.testing.assert_close(result["loss_qvalue"], loss_qvalue)
    torch.testing.assert_close(result["loss_actor"], loss_actor)
    torch.testing.assert_close(result["advantage"], advantage.mean())
    weights = list(loss.parameters())
    ours = torch.autograd.grad(result["loss_qvalue"] + result["loss_actor"], weights)
    theirs = torch.autograd.grad(loss_qvalue + loss_actor, weights)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    error = torch.max(*[(net(now, batch["action"]) - target).abs() for net in nets]).detach()
    torch.testing.assert_close(batch["td_error"], error)


def test_targets_follow_and_online_critics_weigh_the_actions():
    loss = make_loss(delay_actor=True)
    assert loss.target_names == ["actor_network", "qvalue_network"]
    before = loss(make_batch())["loss_actor"]
    SoftUpdate(loss, tau=1.0)
    torch.testing.assert_close(loss(make_batch())["loss_actor"], before)


def test_a_torch_distribution_is_drawn_from_with_the_global_seed():
    class Plain(Actor):
        def get_dist(self, tensordict):
            return Independent(Normal(self.head(tensordict["observation"]), self.log_scale.exp()), 1)

    loss = AWACLoss(Plain(), critic(5), num_samples=3)
    values, batch = [], make_batch()
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        values.append(loss(batch)["loss_actor"])
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
    ("key", "shape"),
    [(("next", "reward"), (12,)), (("next", "terminated"), (12,)), ("gamma", (12,)), ("action", (12, 1))],
)
def test_entries_that_would_broadcast_are_refused(key, shape):
    batch = make_batch()
    batch[key] = torch.zeros(shape, dtype=torch.bool) if key[-1] == "terminated" else torch.rand(shape)
    name = key if isinstance(key, str) else key[-1]
    with pytest.raises((SpecError, RuntimeError), match=name if name != "action" else "action|mat1"):
        make_loss()(batch)


def test_options_are_checked_at_construction():
    for options in ({"temperature": 0.0}, {"num_samples": 0}, {"max_weight": 0.0}, {"loss_function": "l3"}):
        with pytest.raises(SpecError):
            make_loss(**options)
    with pytest.raises(SpecError, match="get_dist"):
        AWACLoss(critic(5), critic(5))


def test_awac_is_registered():
    assert registry.losses.get("awac") is AWACLoss
