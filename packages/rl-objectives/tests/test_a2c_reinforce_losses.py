"""A2C and REINFORCE against the policy gradient in plain torch: at stored actions, with right gradients and keys."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal

from rl_core import registry
from rl_core.errors import KeyMissingError, LossError, SpecError
from rl_core.testing import LossKit
from rl_objectives import GAE, A2CLoss, ReinforceLoss, SoftUpdate, reward2go


class Policy(nn.Module):
    """A Gaussian policy that, called as a module, would draw an action of its own."""

    in_keys = ("observation",)
    out_keys = ("action", "action_log_prob")

    def __init__(self, trunk=None):
        super().__init__()
        self.trunk = trunk if trunk is not None else nn.Identity()
        self.head = nn.Linear(3, 2)

    def get_dist(self, batch):
        return Independent(Normal(self.head(self.trunk(batch["observation"])), 0.7), 1)

    def forward(self, batch):
        raise AssertionError("a loss evaluates the policy at stored actions; it draws none")


def make_critic(trunk=None):
    layers = [nn.Linear(3, 1)] if trunk is None else [trunk, nn.Linear(3, 1)]
    return TensorDictModule(nn.Sequential(*layers), in_keys=["observation"], out_keys=["state_value"])


def make_batch(size=16):
    torch.manual_seed(3)
    done = torch.rand(size, 1) < 0.3
    step = {"observation": torch.randn(size, 3), "reward": torch.randn(size, 1), "done": done, "terminated": done}
    data = {"observation": torch.randn(size, 3), "action": torch.randn(size, 2), "next": step}
    names = ("advantage", "value_target", "state_value")
    return TensorDict({**data, **{name: torch.randn(size, 1) for name in names}}, [size])


def make_loss(kind=A2CLoss, **options):
    torch.manual_seed(4)
    return kind(Policy(), make_critic(), **options)


class TestA2CKeepsItsPromises(LossKit):
    gradients = {
        "loss_objective": {"actor_network"},
        "loss_critic": {"critic_network"},
    }

    def make_loss(self, **options):
        return make_loss(clip_value=0.2, entropy_bonus=False, **options)

    def make_batch(self):
        return make_batch()


class TestReinforceKeepsItsPromises(LossKit):
    gradients = {"loss_actor": {"actor_network"}, "loss_value": {"critic_network"}}

    def make_loss(self, **options):
        return make_loss(ReinforceLoss, **options)

    def make_batch(self):
        return make_batch()


class TestReinforceWithoutCriticKeepsItsPromises(LossKit):
    gradients = {"loss_actor": {"actor_network"}}

    def make_loss(self, **options):
        torch.manual_seed(4)
        return ReinforceLoss(Policy(), **options)

    def make_batch(self):
        return make_batch()


def policy_gradient(loss, batch):
    normal = Normal(loss.actor_network.head(batch["observation"]), 0.7)
    return -(normal.log_prob(batch["action"]).sum(-1) * batch["advantage"].squeeze(-1)).mean()


@pytest.mark.parametrize("critic", ["smooth_l1", "l2", "l1"])
@pytest.mark.parametrize("kind", [A2CLoss, ReinforceLoss])
def test_values_and_gradients_equal_plain_torch(kind, critic):
    loss = make_loss(kind, loss_critic_type=critic, **({"entropy_coeff": 0.05} if kind is A2CLoss else {}))
    twin, batch = copy.deepcopy(loss), make_batch()
    distance = {"smooth_l1": F.smooth_l1_loss, "l2": F.mse_loss, "l1": F.l1_loss}[critic]
    actor, value = policy_gradient(twin, batch), distance(
        twin.critic_network.module(batch["observation"]), batch["value_target"]
    )  # fmt: skip
    result = loss(batch)
    names = ("loss_objective", "loss_critic") if kind is A2CLoss else ("loss_actor", "loss_value")
    torch.testing.assert_close(result[names[0]], actor)
    torch.testing.assert_close(result[names[1]], value)
    if kind is A2CLoss:  # the entropy of two normals of scale .7: 2 (1/2 + 1/2 log 2 pi + log .7)
        entropy = 2 * (0.5 + 0.5 * torch.log(torch.tensor(2 * torch.pi)) + torch.log(torch.tensor(0.7)))
        torch.testing.assert_close(result["loss_entropy"], -0.05 * entropy)
        torch.testing.assert_close(result["entropy"], entropy)
    (result[names[0]] + result[names[1]]).backward()
    (actor + value).backward()
    for one, other in zip(loss.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_defaults_are_those_of_the_field():
    loss = make_loss()
    assert loss.entropy_coeff.item() == pytest.approx(0.01) and loss.critic_coeff.item() == 1.0
    assert loss.loss_critic_type == "smooth_l1"
    assert loss.out_keys == ["loss_objective", "loss_critic", "loss_entropy", "entropy", "explained_variance"]
    assert make_loss(ReinforceLoss).out_keys == ["loss_actor", "loss_value", "explained_variance"]
    assert registry.losses.get("a2c") is A2CLoss and registry.losses.get("reinforce") is ReinforceLoss


def test_advantages_carry_no_gradient():
    loss, batch = make_loss(entropy_bonus=False), make_batch()
    weight = torch.ones(1, requires_grad=True)
    batch["advantage"] = batch["advantage"] * weight
    loss(batch)["loss_objective"].backward()
    assert weight.grad is None


@pytest.mark.parametrize("kind", [A2CLoss, ReinforceLoss])
def test_missing_advantages_are_estimated_with_the_loss_own_critic(kind):
    loss, batch = make_loss(kind), make_batch().exclude("advantage", "value_target", "state_value").reshape(2, 8)
    loss.make_value_estimator(gamma=0.9, lmbda=0.8)
    ready = GAE(gamma=0.9, lmbda=0.8, value_network=loss.critic_network)(batch.clone())
    for key, value in loss(batch).items():
        torch.testing.assert_close(value, loss(ready)[key])


def test_without_critic_returns_serve_as_advantages():
    loss, batch = ReinforceLoss(Policy()), make_batch().exclude("advantage").reshape(2, 8)
    with pytest.raises(KeyMissingError, match='ReinforceLoss needs "advantage"'):
        loss(batch)
    batch["advantage"] = reward2go(batch["next", "reward"], batch["next", "done"], 0.9)
    torch.testing.assert_close(loss(batch)["loss_actor"], policy_gradient(loss, batch.reshape(-1)))


def test_a_delayed_critic_gives_the_advantages_and_the_online_one_learns():
    loss, batch = make_loss(ReinforceLoss, delay_value=True), make_batch().exclude("advantage", "value_target")
    updater = SoftUpdate(loss, tau=0.5)
    before = loss(batch)
    with torch.no_grad():
        loss.critic_network.module[0].bias.add_(10.0)
    after = loss(batch)
    torch.testing.assert_close(after["loss_actor"], before["loss_actor"])
    assert after["loss_value"] > before["loss_value"] + 5
    after["loss_value"].backward()
    assert loss.critic_network.module[0].bias.grad is not None
    updater.step()
    assert not torch.allclose(loss(batch)["loss_actor"], before["loss_actor"])


def test_normalisation_by_a_function_replaces_the_built_in_one():
    batch = make_batch()
    expected = make_loss(normalize_advantage=True)(batch)["loss_objective"]
    own = make_loss(advantage_norm=lambda advantage: (advantage - advantage.mean()) / advantage.std())
    torch.testing.assert_close(own(batch)["loss_objective"], expected)
    with pytest.raises(SpecError, match="both normalise: choose one"):
        make_loss(advantage_norm=torch.tanh, normalize_advantage=True)
    with pytest.raises(LossError, match="what advantage_norm returned"):
        make_loss(advantage_norm=lambda advantage: advantage.mean())(batch)


@pytest.mark.parametrize("kind", [A2CLoss, ReinforceLoss])
def test_separate_losses_keep_the_critic_from_moving_the_shared_trunk(kind):
    trunk = nn.Linear(3, 3)
    loss = kind(Policy(trunk), make_critic(trunk), separate_losses=True)
    out = loss(make_batch())
    out["loss_critic" if kind is A2CLoss else "loss_value"].backward()
    assert trunk.weight.grad is None and loss.critic_network.module[1].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", [A2CLoss, ReinforceLoss])
def test_shapes_that_would_broadcast_are_refused(kind):
    for key, shape in (("advantage", [16, 2]), ("advantage", [4, 1]), ("value_target", [16])):
        batch = make_batch().to_dict()
        batch[key] = torch.randn(*shape)
        batch = TensorDict(batch, [16] if shape[0] == 16 else [])
        with pytest.raises(LossError, match=f'"{key}".*must have one shape'):
            make_loss(kind)(batch)


def test_arguments_that_belong_elsewhere_say_where():
    for kind in (A2CLoss, ReinforceLoss):
        with pytest.raises(TypeError, match=r"make_value_estimator\(gamma=0.9"):
            make_loss(kind, gamma=0.9)
    batch = make_batch()
    batch["action"].requires_grad_()
    with pytest.raises(SpecError, match='stored "action" requires grad'):
        make_loss()(batch)
