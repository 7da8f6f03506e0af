"""DDPG, TD3 and TD3 with cloning against the papers' equations in plain float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import LossError, SpecError
from rl_core.registry import registry
from rl_core.specs import Bounded, Composite, Unbounded
from rl_core.testing import LossKit
from rl_objectives import DDPGLoss, SoftUpdate, TD3BCLoss, TD3Loss
from rl_objectives.functional.td3 import cloning_weight, smoothed_action

GAMMA = 0.9
DISTANCES = {"smooth_l1": F.smooth_l1_loss, "l2": F.mse_loss}


class Joined(nn.Sequential):
    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, -1))


def make_actor():
    return TensorDictModule(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Tanh()),
        in_keys=["observation"],
        out_keys=["action"],
    )


def make_critic():
    net = Joined(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    return TensorDictModule(net, in_keys=["observation", "action"], out_keys=["state_action_value"])


def make_batch(size=12):
    torch.manual_seed(3)
    terminated = torch.rand(size, 1) < 0.3
    step = {
        "observation": torch.randn(size, 3),
        "reward": torch.randn(size, 1),
        "terminated": terminated,
        "done": terminated | (torch.rand(size, 1) < 0.3),
    }
    return TensorDict(
        {"observation": torch.randn(size, 3), "action": torch.rand(size, 2) * 2 - 1, "next": step}, [size]
    )


def as_double(batch):
    return batch.apply(lambda entry: entry.double() if entry.is_floating_point() else entry)


def make_loss(kind, **options):
    torch.manual_seed(4)
    if kind is not DDPGLoss and "action_spec" not in options:
        options = {"bounds": (-1.0, 1.0), **options}
    loss = kind(make_actor(), make_critic(), **options)
    with torch.no_grad():
        for name in loss.target_names:
            for weight in loss.get_submodule(f"target_{name}").buffers():
                weight.mul_(0.8)
    loss.make_value_estimator(gamma=GAMMA)
    return loss


class TestDDPGKeepsItsPromises(LossKit):
    gradients = {"loss_actor": {"actor_network"}, "loss_value": {"value_network"}}
    network_outputs = {"action", "state_action_value"}
    options = {}
    kind = DDPGLoss

    def make_loss(self, **options):
        return make_loss(self.kind, **self.options, **options)

    def make_batch(self):
        return make_batch()


class TestTD3KeepsItsPromises(TestDDPGKeepsItsPromises):
    gradients = {"loss_actor": {"actor_network"}, "loss_qvalue": {"qvalue_network"}}
    options = {"policy_noise": 0.0}
    kind = TD3Loss


class TestTD3BCKeepsItsPromises(TestTD3KeepsItsPromises):
    kind = TD3BCLoss


def values(ensemble, observation, action):
    return [critic.module(observation, action) for critic in ensemble.members]


def same_gradients(loss, twin, out, losses):
    sum(out[key] for key in losses).backward()
    sum(losses.values()).backward()
    for (name, one), other in zip(loss.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


@pytest.mark.parametrize("distance", list(DISTANCES))
@pytest.mark.parametrize("delay_actor", [True, False])
def test_ddpg_equals_plain_torch(distance, delay_actor):
    loss = make_loss(DDPGLoss, loss_function=distance, delay_actor=delay_actor).double()
    twin, batch = copy.deepcopy(loss), as_double(make_batch())
    out, step = loss(batch), batch["next"]
    # Lillicrap et al., 2015, algorithm 1
    with torch.no_grad():
        next_actor = twin.target_actor_network if delay_actor else twin.actor_network
        (soon,) = values(twin.target_value_network, step["observation"], next_actor.module(step["observation"]))
        target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, soon)
    (value,) = values(twin.value_network, batch["observation"], batch["action"])
    frozen = copy.deepcopy(twin.value_network).requires_grad_(False)
    (gain,) = values(frozen, batch["observation"], twin.actor_network.module(batch["observation"]))
    losses = {"loss_value": DISTANCES[distance](value, target), "loss_actor": -gain.mean()}
    logs = {"pred_value": value.mean(), "pred_value_max": value.max(), "target_value": target.mean()}
    logs |= {"target_value_max": target.max(), "td_error": (value - target).abs().mean()}
    for key, expected in {**losses, **logs}.items():
        torch.testing.assert_close(out[key], expected.detach() if key in logs else expected)
    torch.testing.assert_close(batch["td_error"], (value - target).abs().detach())
    same_gradients(loss, twin, out, losses)


@pytest.mark.parametrize("kind", [TD3Loss, TD3BCLoss])
@pytest.mark.parametrize("distance", list(DISTANCES))
def test_td3_equals_plain_torch(kind, distance):
    loss = make_loss(kind, loss_function=distance, policy_noise=0.7, noise_clip=0.4).double()
    twin, batch = copy.deepcopy(loss), as_double(make_batch())
    torch.manual_seed(7)
    out, step = loss(batch), batch["next"]
    # Fujimoto et al., 2018, algorithm 1
    torch.manual_seed(7)
    with torch.no_grad():
        soon = twin.target_actor_network.module(step["observation"])
        soon = (soon + (torch.randn_like(soon) * 0.7).clamp(-0.4, 0.4)).clamp(-1, 1)
        least = torch.min(*values(twin.target_qvalue_network, step["observation"], soon))
        target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, least)
    found = values(twin.qvalue_network, batch["observation"], batch["action"])
    frozen = copy.deepcopy(twin.qvalue_network).requires_grad_(False)
    action = twin.actor_network.module(batch["observation"])
    gain = values(frozen, batch["observation"], action)[0]
    losses = {"loss_qvalue": sum(DISTANCES[distance](q, target) for q in found), "loss_actor": -gain.mean()}
    logs = {"next_state_value": least.mean(), "target_value": target.mean(), "state_action_value_actor": gain.mean()}
    logs["pred_value"] = torch.stack(found).mean()
    if kind is TD3BCLoss:  # Fujimoto and Gu, 2021, eq. 3 and 5
        logs["lmbd"] = 2.5 / gain.abs().mean()
        logs["bc_loss"] = F.mse_loss(action, batch["action"])
        losses["loss_actor"] = -logs["lmbd"].detach() * gain.mean() + logs["bc_loss"]
    for key, expected in {**losses, **logs}.items():
        torch.testing.assert_close(out[key], expected.detach() if key in logs else expected)
    error = torch.stack([(q - target).abs() for q in found]).amax(0).detach()
    torch.testing.assert_close(batch["td_error"], error)
    same_gradients(loss, twin, out, losses)


def test_smoothed_actions_stay_inside_their_bounds():
    torch.manual_seed(0)
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.5])
    action = torch.rand(1000, 2) * (high - low) + low
    moved = smoothed_action(action, torch.randn(1000, 2) * 5, 0.3, low, high)
    assert (moved >= low).all() and (moved <= high).all()
    assert ((moved - action).abs() <= 0.3 + 1e-6).all() and (moved != action).any()
    assert smoothed_action(torch.tensor([0.5]), torch.tensor([9.0]), 0.25, -1, 1).item() == 0.75


def test_a_weight_against_cloning_carries_no_gradient_and_survives_zero():
    value = torch.tensor([1.0, -3.0], requires_grad=True)
    assert cloning_weight(value, 2.5).item() == 1.25 and not cloning_weight(value, 2.5).requires_grad
    assert cloning_weight(torch.zeros(3), 2.5).isfinite()


def test_a_cloning_weight_counts_valid_rows_only():
    loss, batch = make_loss(TD3BCLoss, policy_noise=0.0), make_batch()
    valid = torch.arange(12) % 2 == 0
    expected = loss(batch[valid])["lmbd"]
    torch.testing.assert_close(loss(batch.set(("collector", "mask"), valid))["lmbd"], expected)


@pytest.mark.parametrize(
    "spec",
    [
        Bounded(-0.5, 0.5, (2,)),
        Composite(action=Bounded(-0.5, 0.5, (2,))),
        Composite(action=Bounded(-0.5, 0.5, (64, 2)), shape=(64,)),
        Bounded(-0.5, 0.5, (64, 2)),
    ],
)
def test_bounds_may_come_from_any_spec_of_the_action(spec):
    batch = make_batch()
    torch.manual_seed(0)
    expected = make_loss(TD3Loss, bounds=(-0.5, 0.5))(batch)
    out = make_loss(TD3Loss, action_spec=spec)(batch)
    torch.testing.assert_close(out["next_state_value"], expected["next_state_value"])


def test_bounds_may_differ_by_component():
    low, high = torch.tensor([-1.0, 0.2]), torch.tensor([-0.5, 0.3])
    batch = make_batch()
    seen = []
    for options in (
        {"bounds": (low, high)},
        {"action_spec": Bounded(low, high)},
        {"action_spec": Composite(action=Bounded(low, high).expand(8, 2), shape=(8,))},
    ):
        loss = make_loss(TD3Loss, policy_noise=0.0, **options)
        hook = loss.target_qvalue_network.members[0].module.register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[1])
        )
        loss(batch)
        hook.remove()
    for action in seen:
        assert torch.equal(action, seen[0])
        assert (action >= low).all() and (action <= high).all()
    with pytest.raises(LossError, match=r"\[12, 2\].*bounds of an action are \[3\]"):
        make_loss(TD3Loss, bounds=(torch.zeros(3), torch.tensor([1.0, 1.0, 2.0])))(batch)


def test_wrong_arguments_say_what_is_right():
    for options in ({}, {"bounds": (-1, 1), "action_spec": Bounded(-1, 1, (2,))}):
        with pytest.raises(SpecError, match="or bounds="):
            TD3Loss(make_actor(), make_critic(), **options)
    for spec in (Unbounded((2,)), Composite(other=Bounded(-1, 1, (2,)))):
        with pytest.raises(SpecError, match="needs a Bounded action_spec"):
            make_loss(TD3Loss, action_spec=spec)
    with pytest.raises(SpecError, match="lower bounds must lie below"):
        make_loss(TD3Loss, bounds=(1.0, -1.0))
    with pytest.raises(SpecError, match=r"at least 0; got -0\.1"):
        make_loss(TD3Loss, policy_noise=-0.1)
    with pytest.raises(LossError, match=r'"action" \[12, 2\] and "action" \[12, 3\]'):
        batch = make_batch()
        batch["action"] = torch.zeros(12, 3)
        make_loss(TD3BCLoss)(batch)


def test_noise_follows_a_schedule():
    loss, batch = make_loss(TD3Loss), make_batch()
    loss.policy_noise = 0.0
    quiet = [loss(batch)["target_value"].item() for _ in range(2)]
    assert quiet[0] == quiet[1]
    loss.policy_noise = 0.5
    assert loss(batch)["target_value"].item() != quiet[0]
    assert loss.state_dict()["policy_noise"].item() == 0.5


def test_parts_computed_apart_are_those_of_the_whole():
    batch = make_batch()
    td3, ddpg = make_loss(TD3Loss, policy_noise=0.0), make_loss(DDPGLoss)
    for loss, name, part in ((td3, "loss_qvalue", td3.qvalue_loss), (td3, "loss_qvalue", td3.value_loss)):
        torch.testing.assert_close(part(batch)[0], loss(batch)[name])
    torch.testing.assert_close(td3.actor_loss(batch)[0], td3(batch)["loss_actor"])
    torch.testing.assert_close(ddpg.actor_loss(batch)[0], ddpg(batch)["loss_actor"])
    value, logs = ddpg.value_loss(batch)
    torch.testing.assert_close(value, ddpg(batch)["loss_value"])
    assert set(logs) < set(ddpg.out_keys)


def test_targets_are_as_asked():
    assert make_loss(DDPGLoss).target_names == ["value_network"]
    assert make_loss(TD3Loss).target_names == ["actor_network", "qvalue_network"]
    assert make_loss(TD3Loss, delay_actor=False, delay_qvalue=False).target_names == []
    SoftUpdate(make_loss(TD3Loss), tau=0.005).step()
    for name, kind in (("ddpg", DDPGLoss), ("td3", TD3Loss), ("td3_bc", TD3BCLoss)):
        assert registry.losses.get(name) is kind


def test_it_compiles_into_one_graph():
    loss, batch = make_loss(TD3Loss, policy_noise=0.0), make_batch()
    twin = copy.deepcopy(loss)
    expected, out = twin(batch.clone()), torch.compile(loss, fullgraph=True, backend="aot_eager")(batch)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    for result in (out, expected):
        (result["loss_actor"] + result["loss_qvalue"]).backward()
    for (name, one), other in zip(loss.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
