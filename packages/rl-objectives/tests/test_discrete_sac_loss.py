"""Soft actor-critic for discrete actions against the paper's equations in plain float64."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical, Normal, OneHotCategorical

from rl_core.errors import LossError, SpecError
from rl_core.specs import Categorical as CategoricalSpec
from rl_core.specs import OneHot
from rl_core.testing import LossKit
from rl_objectives import DiscreteSACLoss
from rl_objectives.functional.soft_value import expected_soft_value

GAMMA = 0.9


class Actor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, kind=OneHotCategorical):
        super().__init__()
        self.head, self.kind = nn.Linear(3, 4), kind

    def get_dist(self, tensordict):
        return self.kind(logits=self.head(tensordict["observation"]))


def make_critic(count=4):
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, count))
    return TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"])


def make_batch(size=12, one_hot=True):
    torch.manual_seed(3)
    terminated = torch.rand(size, 1) < 0.3
    index = torch.randint(4, (size,))
    step = {
        "observation": torch.randn(size, 3),
        "reward": torch.randn(size, 1),
        "terminated": terminated,
        "done": terminated | (torch.rand(size, 1) < 0.3),
    }
    action = F.one_hot(index, 4) if one_hot else index
    return TensorDict({"observation": torch.randn(size, 3), "action": action, "next": step}, [size])


def make_loss(actor=None, critic=None, **options):
    torch.manual_seed(4)
    loss = DiscreteSACLoss(actor or Actor(), critic or make_critic(), **{"num_actions": 4, **options})
    with torch.no_grad():
        for name in loss.target_names:
            for weight in loss.get_submodule(f"target_{name}").buffers():
                weight.mul_(0.8)
    loss.make_value_estimator(gamma=GAMMA)
    return loss


class TestDiscreteSACKeepsItsPromises(LossKit):
    gradients = {"loss_actor": {"actor_network"}, "loss_qvalue": {"qvalue_network"}, "loss_alpha": {"log_alpha"}}
    network_outputs = {"action_value"}

    def make_loss(self, **options):
        return make_loss(alpha_init=0.5, **options)

    def make_batch(self):
        return make_batch()


@pytest.mark.parametrize("one_hot", [True, False])
def test_values_gradients_and_priorities_equal_plain_torch(one_hot):
    loss = make_loss(alpha_init=0.3, loss_function="l2").double()
    batch = make_batch(one_hot=one_hot)
    batch = batch.apply(lambda entry: entry.double() if entry.is_floating_point() else entry)
    twin, step = copy.deepcopy(loss), batch["next"]
    out = loss(batch)
    # Christodoulou, 2019, eq. 10 (critics), 11 (temperature), 12 (policy)
    alpha = twin.log_alpha.exp().detach()
    with torch.no_grad():
        probs = twin.actor_network.head(step["observation"]).softmax(-1)
        least = torch.min(*(critic.module(step["observation"]) for critic in twin.target_qvalue_network.members))
        soft = (probs * (least - alpha * probs.log())).sum(-1, keepdim=True)
        target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, soft)
    index = (batch["action"].argmax(-1) if one_hot else batch["action"]).unsqueeze(-1)
    found = [critic.module(batch["observation"]) for critic in twin.qvalue_network.members]
    chosen = [value.gather(-1, index) for value in found]
    probs = twin.actor_network.head(batch["observation"]).softmax(-1)
    least = torch.min(*found).detach()
    actor = (probs * (alpha * probs.log() - least)).sum(-1).mean()
    entropy = -(probs * probs.log()).sum(-1).detach()
    losses = {
        "loss_qvalue": sum(F.mse_loss(value, target) for value in chosen),
        "loss_actor": actor,
        "loss_alpha": (twin.log_alpha * (entropy - 0.98 * math.log(4))).mean(),
    }
    error = torch.stack([(value - target).abs() for value in chosen]).amax(0).detach()
    logs = {"alpha": alpha, "entropy": entropy.mean(), "td_error": error.mean()}
    for key, value in {**losses, **logs}.items():
        torch.testing.assert_close(out[key], value)
    torch.testing.assert_close(batch["td_error"], error)
    sum(out[key] for key in losses).backward()
    sum(losses.values()).backward()
    for (name, one), other in zip(loss.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


def test_every_way_to_store_actions_gives_the_same_losses():
    expected = make_loss()(make_batch())
    for space, one_hot in (("one_hot", True), (OneHot(4), True), ("categorical", False), (CategoricalSpec(4), False)):
        out = make_loss(action_space=space)(make_batch(one_hot=one_hot))
        torch.testing.assert_close(out["loss_qvalue"], expected["loss_qvalue"])
    column = make_batch(one_hot=False)
    column["action"] = column["action"].unsqueeze(-1)
    torch.testing.assert_close(make_loss()(column)["loss_qvalue"], expected["loss_qvalue"])
    with pytest.raises(LossError, match="do not fit action values"):
        make_loss(action_space="categorical")(make_batch())


def test_forbidden_actions_count_for_nothing_and_leave_the_gradient_finite():
    allowed = torch.tensor([True, False, True, True])

    class Masked(Actor):
        def get_dist(self, tensordict):
            logits = self.head(tensordict["observation"]).masked_fill(~allowed, float("-inf"))
            return Categorical(logits=logits, validate_args=False)

    class Forbidding(nn.Sequential):
        def forward(self, observation):
            return super().forward(observation).masked_fill(~allowed, float("-inf"))

    batch = make_batch()
    batch["action"] = F.one_hot(torch.zeros(12, dtype=torch.int64), 4)
    results = []
    for kind in (nn.Sequential, Forbidding):
        torch.manual_seed(0)
        actor, net = Masked(), kind(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))
        loss = make_loss(actor, TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"]))
        out = loss(batch)
        (out["loss_actor"] + out["loss_qvalue"]).backward()
        assert all(parameter.grad.isfinite().all() for parameter in actor.parameters())
        results.append(out)
    for key, value in results[0].items():
        assert value.isfinite()
        torch.testing.assert_close(results[1][key], value)
    assert results[0]["entropy"] <= math.log(3)


def test_the_expected_value_of_a_uniform_policy_has_its_whole_entropy():
    value = expected_soft_value(torch.zeros(5), torch.full((5,), 0.2), torch.tensor(2.0))
    assert value.item() == pytest.approx(2 * math.log(5))


def test_the_target_entropy_is_a_share_of_the_largest_one():
    batch = make_batch()
    given = make_loss(target_entropy=0.5 * math.log(4), alpha_init=0.3)(batch)["loss_alpha"]
    for options in ({}, {"num_actions": None}):
        out = make_loss(target_entropy_weight=0.5, alpha_init=0.3, **options)(batch)
        torch.testing.assert_close(out["loss_alpha"], given)
    torch.testing.assert_close(make_loss().alpha_loss(torch.zeros(3)), torch.tensor(0.0))


def test_parts_computed_apart_are_those_of_the_whole():
    loss, batch = make_loss(alpha_init=0.4), make_batch()
    whole = loss(batch)
    actor, logs = loss.actor_loss(batch)
    torch.testing.assert_close(actor, whole["loss_actor"])
    torch.testing.assert_close(loss.qvalue_loss(batch)[0], whole["loss_qvalue"])
    torch.testing.assert_close(loss.alpha_loss(logs["log_prob"]), whole["loss_alpha"])


def test_wrong_arguments_say_what_is_right():
    with pytest.raises(LossError, match=r"one number for each of n actions"):
        make_loss(critic=make_critic(5), num_actions=None)(make_batch())
    with pytest.raises(LossError, match=r"one number for each of 3 actions"):
        make_loss(num_actions=3)(make_batch())

    class Continuous(Actor):
        def get_dist(self, tensordict):
            return Normal(self.head(tensordict["observation"]), 1.0)

    with pytest.raises(SpecError, match="whose distribution has probs; got Normal"):
        make_loss(Continuous())(make_batch())
    with pytest.raises(SpecError, match="action_space is 'one_hot'"):
        make_loss(action_space="binary")
