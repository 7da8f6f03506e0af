"""IMPALALoss: golden numbers of V-trace, its gradients, and that it follows the networks as they are now."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl_core import registry
from rl_core.errors import KeyMissingError, LossError, SpecError
from rl_core.testing import LossKit
from rl_objectives import IMPALALoss, VTrace


class Policy(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, trunk=None):
        super().__init__()
        self.trunk = trunk if trunk is not None else nn.Identity()
        self.head = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def get_dist(self, batch):
        return Independent(Normal(self.head(self.trunk(batch["observation"])), self.scale), 1)


def make_critic(trunk=None):
    layers = [nn.Linear(3, 1)] if trunk is None else [trunk, nn.Linear(3, 1)]
    return TensorDictModule(nn.Sequential(*layers), in_keys=["observation"], out_keys=["state_value"])


def make_batch(*size, done=0.3):
    torch.manual_seed(3)
    ends = torch.rand(*size, 1) < done
    step = {"observation": torch.randn(*size, 3), "reward": torch.randn(*size, 1), "done": ends}
    step["terminated"] = ends & (torch.rand(*size, 1) < 0.5)
    data = {"observation": torch.randn(*size, 3), "action": torch.randn(*size, 2)}
    return TensorDict({**data, "action_log_prob": torch.randn(*size) - 2, "next": step}, size)


def make_loss(**options):
    torch.manual_seed(4)
    return IMPALALoss(Policy(), make_critic(), **options)


class TestImpalaKeepsItsPromises(LossKit):
    """Every row is an episode of one step: the kit's rows are independent."""

    gradients = {
        "loss_objective": {"actor_network"},
        "loss_critic": {"critic_network"},
        "loss_entropy": {"actor_network"},
    }

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch(16, done=1.0)


def test_golden_numbers_of_two_steps():
    """Two steps of a bandit-like chain, all numbers by hand.

    pi = (.5, .5); mu took action 0 with probability 1, then action 1 with .25. So the ratios are .5 and 2; rho and c
    are cut at 1. V = (1, 2), V' = (2, 4), rewards (1, 1), gamma .5; the last step is truncated, not terminated.
    v_2 = 2 + 1 (1 + .5 * 4 - 2) = 3;  v_1 = 1 + .5 (1 + .5 * 2 - 1) + .5 * .5 (3 - 2) = 1.75
    A_2 = 1 (1 + .5 * 4 - 2) = 1;      A_1 = .5 (1 + .5 * 3 - 1) = .75
    """

    class Coin(nn.Module):
        in_keys, out_keys = ("observation",), ("action",)

        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.zeros(2))

        def get_dist(self, batch):
            return Categorical(logits=self.logits.expand(*batch.shape, 2))

    critic = TensorDictModule(nn.Linear(1, 1, bias=False), in_keys=["observation"], out_keys=["state_value"])
    nn.init.ones_(critic.module.weight)
    ends = torch.tensor([[False], [True]])
    step = {
        "observation": torch.tensor([[2.0], [4.0]]),
        "reward": torch.ones(2, 1),
        "done": ends,
        "terminated": torch.zeros_like(ends),
    }
    batch = TensorDict(
        {
            "observation": torch.tensor([[1.0], [2.0]]),
            "action": torch.tensor([0, 1]),
            "action_log_prob": torch.tensor([1.0, 0.25]).log(),
            "next": step,
        },
        [2],
    )
    loss = IMPALALoss(Coin(), critic, entropy_coeff=0.1).make_value_estimator(gamma=0.5)
    out = loss(batch)
    log2 = torch.log(torch.tensor(2.0))
    torch.testing.assert_close(out["loss_objective"], log2 * (0.75 + 1.0) / 2)
    torch.testing.assert_close(out["loss_critic"], torch.tensor(0.5 * (0.75**2 + 1.0**2) / 2))
    torch.testing.assert_close(out["loss_entropy"], -0.1 * log2)
    assert out["mean_ratio"].item() == pytest.approx(1.25) and out["clip_fraction"].item() == 0.5
    out["loss_objective"].backward()
    # d log pi(a) / d logits = onehot(a) - (.5, .5)
    torch.testing.assert_close(loss.actor_network.logits.grad, torch.tensor([0.5 * (1.0 - 0.75) / 2, -0.5 * 0.25 / 2]))
    out["loss_critic"].backward()
    # .5 * mean of d (V - v)^2 / dw = mean of (V - v) x
    torch.testing.assert_close(critic.module.weight.grad, torch.tensor([[-(0.75 * 1.0 + 1.0 * 2.0) / 2]]))


def test_it_equals_vtrace_and_the_policy_gradient():
    loss, batch = make_loss(rho_thresh=1.3, c_thresh=0.9), make_batch(3, 7)
    loss.make_value_estimator(gamma=0.9)
    estimator = VTrace(
        gamma=0.9, actor_network=loss.actor_network, value_network=loss.critic_network, rho_thresh=1.3, c_thresh=0.9
    )
    ready = estimator(batch.clone())
    log_prob = loss.actor_network.get_dist(batch).log_prob(batch["action"]).unsqueeze(-1)
    value = loss.critic_network.module(batch["observation"])
    out = loss(batch)
    torch.testing.assert_close(out["loss_objective"], -(log_prob * ready["advantage"]).mean())
    torch.testing.assert_close(out["loss_critic"], 0.5 * (value - ready["value_target"]).square().mean())


def test_stale_advantages_in_the_batch_are_not_read():
    loss, batch = make_loss(), make_batch(3, 7)
    expected = loss(batch)["loss_objective"]
    batch["advantage"] = batch["value_target"] = batch["state_value"] = torch.full((3, 7, 1), 1e6)
    torch.testing.assert_close(loss(batch)["loss_objective"], expected)


def test_no_gradient_flows_through_weights_or_targets():
    loss, batch = make_loss(entropy_bonus=False), make_batch(3, 7)
    out = loss(batch)
    out["loss_objective"].backward(retain_graph=True)
    assert all(p.grad is None for p in loss.critic_network.parameters())
    loss.zero_grad()
    out["loss_critic"].backward()
    assert all(p.grad is None for p in loss.actor_network.parameters())


def test_padding_does_not_count():
    loss, batch = make_loss(), make_batch(2, 6, done=0.0)
    expected = loss(batch[:, :4])
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[:, 4:] = False
    batch["collector", "mask"] = mask
    batch["next", "reward"][~mask] = 1e6
    for key, value in loss(batch).items():
        torch.testing.assert_close(value, expected[key])


def test_separate_losses_keep_the_critic_from_moving_the_shared_trunk():
    trunk = nn.Linear(3, 3)
    loss = IMPALALoss(Policy(trunk), make_critic(trunk), separate_losses=True)
    loss(make_batch(3, 7))["loss_critic"].backward()
    assert trunk.weight.grad is None and loss.critic_network.module[1].weight.grad.abs().sum() > 0


def test_what_is_not_impala_is_refused():
    with pytest.raises(SpecError, match=r"made of V-trace; got GAE\. With another estimator it is A2CLoss"):
        make_loss().make_value_estimator("gae")
    with pytest.raises(SpecError, match="needs a critic_network"):
        IMPALALoss(Policy(), make_critic(), critic_coeff=None)
    with pytest.raises(SpecError, match="c_thresh is the largest importance weight"):
        make_loss(c_thresh=-1.0)
    with pytest.raises(KeyMissingError, match='"action_log_prob"'):
        make_loss()(make_batch(2, 3).exclude("action_log_prob"))
    batch = make_batch(2, 3)
    batch["action_log_prob"] = torch.zeros(2, 3, 2)
    with pytest.raises(LossError, match="must be"):
        make_loss()(batch)
    assert registry.losses.get("impala") is IMPALALoss
