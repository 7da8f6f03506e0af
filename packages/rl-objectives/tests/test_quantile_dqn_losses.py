"""Quantile regression, QRDQNLoss and IQNLoss against Dabney et al., 2017 and 2018, written out pair by pair."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import nn

from rl_core.errors import SpecError
from rl_core.testing import LossKit
from rl_objectives import IQNLoss, QRDQNLoss
from rl_objectives.functional.quantile import quantile_huber_loss, quantile_midpoints


class LevelNet(nn.Module):
    """Quantiles of four actions at given levels; levels are features."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, observation, taus):
        rows = observation.unsqueeze(-2).expand(*taus.shape, 3)
        return self.layers(torch.cat([rows, taus.unsqueeze(-1)], -1))


class FixedLevels(IQNLoss):
    """IQN whose levels are the same for all rows, so that it can be compared."""

    def draw_taus(self, rows, count, like):
        return quantile_midpoints(count, dtype=like.dtype).expand(*rows, count)


def shifted_target(loss):
    torch.manual_seed(9)
    with torch.no_grad():
        for value in loss.target_value_network.state_dict().values():
            value.add_(0.5 * torch.randn_like(value))
    return loss


def make_qr(**options):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(3, 20), nn.Unflatten(-1, (5, 4)))
    return shifted_target(QRDQNLoss(TensorDictModule(net, ["observation"], ["action_value"]), **options))


def make_iqn(kind=FixedLevels, **options):
    torch.manual_seed(4)
    network = TensorDictModule(LevelNet(), ["observation", "taus"], ["action_value"])
    options = {"num_taus": 3, "num_target_taus": 5, "num_policy_taus": 7, **options}
    return shifted_target(kind(network, **options))


def make_batch(size=16):
    torch.manual_seed(3)
    terminated = torch.rand(size, 1) < 0.3
    step = {
        "observation": torch.randn(size, 3),
        "reward": torch.randn(size, 1),
        "done": terminated | (torch.rand(size, 1) < 0.2),
        "terminated": terminated,
    }
    return TensorDict(
        {"observation": torch.randn(size, 3), "action": torch.randint(0, 4, (size,)), "next": step}, [size]
    )


def doubled(batch):
    return batch.apply(lambda value: value.double() if value.is_floating_point() else value)


class TestQRDQNKeepsItsPromises(LossKit):
    gradients = {"loss": {"value_network"}}
    network_outputs = {"action_value", "value", "taus"}

    def make_loss(self, **options):
        return make_qr(**options)

    def make_batch(self):
        return make_batch().set("priority_weight", torch.rand(16))


class TestIQNKeepsItsPromises(TestQRDQNKeepsItsPromises):
    def make_loss(self, **options):
        return make_iqn(**options)


def huber_pairs(theta, taus, y, kappa):
    """Dabney et al., 2017, eq. 9 and 10: sum over i of the mean over j."""
    total = torch.zeros((), dtype=theta.dtype)
    for theta_i, tau_i in zip(theta, taus, strict=True):
        for y_j in y:
            u = y_j - theta_i
            huber = u.abs() if kappa == 0 else (0.5 * u**2 if abs(u) <= kappa else kappa * (u.abs() - 0.5 * kappa))
            total = total + abs(tau_i - (1.0 if u < 0 else 0.0)) * huber / len(y)
    return total


def test_the_loss_of_one_quantile_by_hand():
    # u = 3: |.25| (3 - .5) = .625; u = -1: |.25 - 1| * .5 = .375; their mean is .5
    loss = quantile_huber_loss(torch.tensor([0.0]), torch.tensor([0.25]), torch.tensor([3.0, -1.0]))
    assert loss.tolist() == [0.5]
    plain = quantile_huber_loss(torch.tensor([0.0]), torch.tensor([0.25]), torch.tensor([3.0, -1.0]), kappa=0)
    assert plain.tolist() == [0.75]


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.3, 1.0, 2.5]))
def test_all_pairs_equal_equation_10(seed, kappa):
    torch.manual_seed(seed)
    theta, y, taus = torch.randn(3).double() * 2, torch.randn(4).double() * 2, torch.rand(3).double()
    theta.requires_grad_()
    found, expected = quantile_huber_loss(theta, taus, y, kappa).squeeze(), huber_pairs(theta, taus, y, kappa)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, theta)[0] for value in (found, expected)))


def test_regression_finds_the_quantiles_of_a_sample():
    torch.manual_seed(0)
    sample = torch.rand(101).sort().values
    theta = torch.zeros(4, requires_grad=True)
    optimiser = torch.optim.Adam([theta], lr=0.02)
    for _ in range(400):
        optimiser.zero_grad()
        quantile_huber_loss(theta, quantile_midpoints(4), sample, kappa=0).sum().backward()
        optimiser.step()
    torch.testing.assert_close(theta.data, sample.quantile(quantile_midpoints(4)), atol=0.04, rtol=0)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(SpecError, match=r"quantiles \[2, 3\], their levels \[2\] and targets \[2, 4\]"):
        quantile_huber_loss(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 4))
    with pytest.raises(SpecError, match="kappa is at least 0; got -1"):
        make_qr(kappa=-1.0)


def reference(batch, online, target, judge, taus, *, gamma, kappa, divisor):
    """Rows of the loss, from the quantiles [B, N, n] of the three networks."""
    rows, errors = [], []
    for b in range(len(batch)):
        best = int(judge[b].mean(0).argmax())
        y = batch["next", "reward"][b] + gamma * target[b, :, best] * ~batch["next", "terminated"][b]
        theta = online[b, :, batch["action"][b]]
        rows.append(huber_pairs(theta, taus, y, kappa) / divisor)
        errors.append((theta.mean() - y.mean()).abs())
    return torch.stack(rows), torch.stack(errors).detach()


def check(loss, batch, rows, errors):
    wanted = torch.autograd.grad(rows.mean(), list(loss.parameters()))
    out = loss(batch)
    torch.testing.assert_close(out["loss"], rows.mean())
    for found, right in zip(torch.autograd.grad(out["loss"], list(loss.parameters())), wanted, strict=True):
        torch.testing.assert_close(found, right)
    torch.testing.assert_close(batch["td_error"], errors.unsqueeze(-1))
    torch.testing.assert_close(out["td_error"], errors.mean())


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_qr_dqn_equals_algorithm_1(double, kappa):
    loss, batch = make_qr(gamma=0.9, double_dqn=double, kappa=kappa).double(), doubled(make_batch())
    net = loss.value_network.module
    with torch.no_grad():
        target = loss.target_value_network.module(batch["next", "observation"])
        judge = net(batch["next", "observation"]) if double else target
    taus = [0.1, 0.3, 0.5, 0.7, 0.9]
    check(loss, batch, *reference(
        batch, net(batch["observation"]), target, judge, taus, gamma=0.9, kappa=kappa, divisor=1
    ))  # fmt: skip


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_iqn_equals_equation_3(double, kappa):
    loss, batch = make_iqn(gamma=0.9, double_dqn=double, kappa=kappa).double(), doubled(make_batch())
    net, frozen, following = loss.value_network.module, loss.target_value_network.module, batch["next", "observation"]

    def levels(count, within=None):
        grid = quantile_midpoints(within or count, dtype=torch.float64)
        return grid.expand(16, -1)

    with torch.no_grad():
        if double:
            target, judge = frozen(following, levels(5)), net(following, levels(7))
        else:  # drawn together: five for the target, seven for the choice
            target, judge = frozen(following, levels(12)).split([5, 7], 1)
    online = net(batch["observation"], levels(3))
    divisor = kappa or 1
    check(loss, batch, *reference(
        batch, online, target, judge, levels(3)[0].tolist(), gamma=0.9, kappa=kappa, divisor=divisor
    ))  # fmt: skip


@pytest.mark.parametrize("make", [make_qr, make_iqn])
def test_after_a_termination_the_network_is_not_asked(make):
    loss, batch = make(), make_batch()
    expected = loss(batch)["loss"]
    batch["next", "observation"][batch["next", "terminated"].flatten()] = float("nan")
    torch.testing.assert_close(loss(batch)["loss"], expected)


@pytest.mark.parametrize("make", [make_qr, make_iqn])
def test_only_allowed_actions_are_the_next_ones(make):
    loss, batch = make(gamma=0.9), make_batch()
    forced = torch.zeros(16, 4, dtype=torch.bool)
    forced[:, 2] = True
    free = loss(batch)["target_value"]
    only = loss(batch.set(("next", "action_mask"), forced))["target_value"]
    assert only < free


def test_levels_are_drawn_anew_for_every_row_under_the_global_seed():
    loss, batch = make_iqn(IQNLoss), make_batch()
    drawn = []
    loss.draw_taus = lambda *arguments: drawn.append(IQNLoss.draw_taus(loss, *arguments)) or drawn[-1]
    torch.manual_seed(0)
    first = loss(batch)["loss"]
    torch.manual_seed(0)
    assert torch.equal(loss(batch)["loss"], first) and not torch.equal(loss(batch)["loss"], first)
    assert [list(taus.shape) for taus in drawn[:2]] == [[16, 3], [16, 12]]
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert "taus" not in batch and "taus" not in loss.in_keys and ("next", "taus") not in loss.in_keys


def test_a_network_that_reads_no_levels_is_refused():
    network = TensorDictModule(LevelNet(), ["observation", "tau"], ["action_value"])
    with pytest.raises(SpecError, match=r'the levels it is asked for under "taus"; it reads "observation", "tau"'):
        IQNLoss(network)(make_batch())
    loss = IQNLoss(network)
    loss.set_keys(taus="tau")
    assert loss(make_batch())["loss"].isfinite()
    with pytest.raises(SpecError, match="at least one level each; got 0, 8 and 32"):
        IQNLoss(network, num_taus=0)


def test_an_actor_hands_out_the_network_that_reads_levels():
    class Actor(TensorDictModuleBase):
        in_keys = ("observation",)
        out_keys = ("action", "action_value")

        def __init__(self):
            super().__init__()
            self.network = TensorDictModule(LevelNet(), ["observation", "taus"], ["action_value"])

        def get_value_operator(self):
            return self.network

    loss = IQNLoss(Actor())
    loss(make_batch())["loss"].backward()
    assert all(parameter.grad is not None for parameter in loss.parameters())
