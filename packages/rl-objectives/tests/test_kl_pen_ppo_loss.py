"""KLPENPPOLoss: the penalty, its closed form and its estimate, and a beta that moves only when told to."""

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Distribution, Independent, Normal, kl_divergence

from rl_core import registry
from rl_core.errors import SpecError
from rl_core.testing import LossKit
from rl_objectives import KLPENPPOLoss, PPOLoss


class Gaussian(Independent):
    """A normal over a vector, from loc and scale."""

    def __init__(self, loc, scale):
        super().__init__(Normal(loc, scale), 1)


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 4)

    def forward(self, observation):
        loc, scale = self.net(observation).chunk(2, -1)
        return loc, scale.exp()


def make_actor(distribution=Gaussian):
    head = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=distribution)
    return ProbabilisticTensorDictSequential(TensorDictModule(Split(), ["observation"], ["loc", "scale"]), head)


def make_critic():
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])


def make_batch(size=16):
    torch.manual_seed(3)
    done = torch.rand(size, 1) < 0.3
    step = {"observation": torch.randn(size, 3), "reward": torch.randn(size, 1), "done": done, "terminated": done}
    data = {"observation": torch.randn(size, 3), "action": torch.randn(size, 2), "action_log_prob": torch.randn(size)}
    data |= {"loc": torch.randn(size, 2), "scale": torch.rand(size, 2) + 0.5}
    names = ("advantage", "value_target", "state_value")
    return TensorDict({**data, **{name: torch.randn(size, 1) for name in names}, "next": step}, [size])


def make_loss(**options):
    torch.manual_seed(4)
    return KLPENPPOLoss(make_actor(), make_critic(), **options)


class TestKLPenaltyKeepsItsPromises(LossKit):
    gradients = {
        "loss_objective": {"actor_network"},
        "loss_critic": {"critic_network"},
        "loss_entropy": {"actor_network"},
    }

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch()


def test_the_objective_is_that_of_ppo_and_beta_times_the_divergence():
    loss, batch = make_loss(beta=3.0), make_batch()
    plain = PPOLoss(copy.deepcopy(loss.actor_network), copy.deepcopy(loss.critic_network))
    loc, scale = loss.actor_network[0].module(batch["observation"])
    kl = kl_divergence(Gaussian(batch["loc"], batch["scale"]), Gaussian(loc, scale)).mean()
    out = loss(batch)
    torch.testing.assert_close(out["kl"], kl)
    torch.testing.assert_close(out["loss_objective"], plain(batch)["loss_objective"] + 3.0 * kl)
    gradient = torch.autograd.grad(out["loss_objective"], loss.actor_network[0].module.net.weight)[0]
    reference = plain(batch)["loss_objective"]
    loc, scale = plain.actor_network[0].module(batch["observation"])
    kl = kl_divergence(Gaussian(batch["loc"], batch["scale"]), Gaussian(loc, scale)).mean()
    weight = plain.actor_network[0].module.net.weight
    torch.testing.assert_close(gradient, torch.autograd.grad(reference + 3.0 * kl, weight)[0])


def test_a_divergence_without_closed_form_is_sampled():
    class Opaque(Distribution):
        arg_constraints = {}
        has_rsample = False

        def __init__(self, loc, scale):
            self.inside = Gaussian(loc, scale)
            super().__init__(self.inside.batch_shape, self.inside.event_shape, validate_args=False)

        def sample(self, shape=()):
            return self.inside.sample(shape)

        def log_prob(self, value):
            return self.inside.log_prob(value)

        def entropy(self):
            return self.inside.entropy()

    loss, batch = make_loss(), make_batch()
    expected = loss(batch)["kl"]
    torch.manual_seed(4)
    sampled = KLPENPPOLoss(make_actor(Opaque), make_critic(), samples_mc_kl=20000)
    torch.testing.assert_close(sampled(batch)["kl"], expected, rtol=0.03, atol=0)


def test_a_forward_pass_leaves_beta_alone():
    loss, batch = make_loss(dtarg=1e-9), make_batch()
    for _ in range(3):
        loss(batch)
    assert loss.beta.item() == 1.0


def test_beta_follows_the_divergence_when_told_to():
    loss = make_loss(dtarg=0.1, beta=1.0, increment=3.0, decrement=0.25)
    assert loss.update_beta(0.151) == 3.0  # over 1.5 dtarg
    assert loss.update_beta(torch.tensor(0.149)) == 3.0
    assert loss.update_beta(0.067) == 3.0
    assert loss.update_beta(0.066) == 0.75  # under dtarg / 1.5
    out = loss(make_batch())
    assert out["kl"] > 0.15
    assert loss.update_beta(out) == 2.25
    assert loss.state_dict()["beta"].item() == 2.25
    loss.beta = 0.5
    assert loss.update_beta(0.1) == 0.5


def test_masked_rows_have_no_part_in_the_divergence():
    loss, batch = make_loss(), make_batch()
    valid = torch.arange(16) < 10
    expected = loss(batch[valid])["kl"]
    batch["collector", "mask"] = valid
    torch.testing.assert_close(loss(batch)["kl"], expected)


def test_what_cannot_work_is_refused():
    class Bare(nn.Module):
        in_keys, out_keys = ("observation",), ("action",)

        def get_dist(self, batch):
            return Normal(batch["observation"], 1.0)

    with pytest.raises(SpecError, match=r"build_dist_from_params.*got Bare"):
        KLPENPPOLoss(Bare())
    with pytest.raises(SpecError, match="increment is > 1"):
        make_loss(increment=1.0)
    with pytest.raises(SpecError, match="dtarg is > 0"):
        make_loss(dtarg=0.0)
    assert registry.losses.get("kl_pen_ppo") is KLPENPPOLoss
