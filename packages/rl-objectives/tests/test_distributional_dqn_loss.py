"""The categorical projection and DistributionalDQNLoss against Bellemare et al., 2017, written out atom by atom."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import LossError, PolicyError, SpecError
from rl_core.testing import LossKit
from rl_objectives import DistributionalDQNLoss, SoftUpdate
from rl_objectives.functional.distributional import categorical_projection, check_support, expected_value

SUPPORT = torch.linspace(-2, 2, 5)


class LogSoftmax(nn.Module):
    support = SUPPORT

    def forward(self, scores):
        return scores.log_softmax(-2)


def make_loss(**options):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(3, 20), nn.Unflatten(-1, (5, 4)), LogSoftmax())
    loss = DistributionalDQNLoss(TensorDictModule(net, ["observation"], ["action_value"]), **options)
    torch.manual_seed(9)
    with torch.no_grad():
        for value in loss.target_value_network.state_dict().values():
            value.add_(torch.randn_like(value))
    return loss


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


class TestDistributionalDQNKeepsItsPromises(LossKit):
    gradients = {"loss": {"value_network"}}
    network_outputs = {"action_value", "value"}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch().set("priority_weight", torch.rand(16))


def projection_by_equation_7(probs, atoms, support):
    """Bellemare et al., 2017, eq. 7, term by term."""
    low, high, step = support[0].item(), support[-1].item(), (support[1] - support[0]).item()
    result = torch.zeros(len(support), dtype=torch.float64)
    for i, z_i in enumerate(support.tolist()):
        for p_j, z_j in zip(probs.tolist(), atoms.tolist(), strict=True):
            result[i] += min(max(1 - abs(min(max(z_j, low), high) - z_i) / step, 0), 1) * p_j
    return result


def test_an_atom_between_two_others_shares_its_mass_and_one_on_the_support_keeps_it():
    probs = torch.tensor([[0.4, 0.6, 0.0], [0.2, 0.3, 0.5], [0.1, 0.2, 0.7]])
    atoms = torch.tensor([[0.25, 1.0, 1.0], [-7.0, 9.0, 2.0], [2.0, 2.0, 2.0]])
    expected = torch.tensor([[0.3, 0.7, 0.0], [0.2, 0.0, 0.8], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(categorical_projection(probs, atoms, torch.tensor([0.0, 1.0, 2.0])), expected)


@given(st.floats(-15, 15), st.floats(0, 1), st.integers(2, 12), st.integers(0, 1000))
def test_the_projection_equals_equation_7_and_conserves_mass(reward, gamma, count, seed):
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(-10, 10, count, dtype=torch.float64)
    probs = torch.rand(count, generator=generator, dtype=torch.float64).softmax(-1)
    atoms = reward + gamma * support
    found = categorical_projection(probs, atoms, support)
    torch.testing.assert_close(found, projection_by_equation_7(probs, atoms, support), atol=1e-9, rtol=0)
    torch.testing.assert_close(found.sum(), torch.ones((), dtype=torch.float64))
    assert (found >= 0).all()


def test_shifting_by_whole_atoms_moves_the_mass_without_spreading_it():
    support = torch.linspace(-10, 10, 51)
    probs = torch.rand(7, 51).softmax(-1)
    moved = categorical_projection(probs, support + 0.4, support)
    expected = torch.cat([torch.zeros(7, 1), probs[:, :-2], probs[:, -2:].sum(-1, keepdim=True)], -1)
    torch.testing.assert_close(moved, expected, atol=2e-5, rtol=0)


def reference(loss, batch, *, gamma, double):
    """Bellemare et al., 2017, algorithm 1; with double, the action of the online network (Hessel et al., 2017)."""
    net, target = loss.value_network.module, loss.target_value_network.module
    support = SUPPORT.double()
    log_probs = net(batch["observation"])
    rows, targets = [], []
    with torch.no_grad():
        following = target(batch["next", "observation"]).exp()
        judge = net(batch["next", "observation"]).exp() if double else following
    for b in range(len(batch)):
        best = max(range(4), key=lambda a: (judge[b, :, a] * support).sum().item())
        discount = gamma * (not batch["next", "terminated"][b].item())
        m = projection_by_equation_7(following[b, :, best], batch["next", "reward"][b] + discount * support, support)
        rows.append(-(m * log_probs[b, :, batch["action"][b]]).sum())
        targets.append((m * support).sum())
    return torch.stack(rows), torch.stack(targets)


@pytest.mark.parametrize("double", [False, True])
def test_values_gradients_and_priorities_equal_the_algorithm(double):
    loss, batch = make_loss(gamma=0.9, double_dqn=double).double(), doubled(make_batch())
    rows, targets = reference(loss, batch, gamma=0.9, double=double)
    wanted = torch.autograd.grad(rows.mean(), list(loss.parameters()))
    out = loss(batch)
    torch.testing.assert_close(out["loss"], rows.mean())
    for found, right in zip(torch.autograd.grad(out["loss"], list(loss.parameters())), wanted, strict=True):
        torch.testing.assert_close(found, right)
    torch.testing.assert_close(batch["td_error"], rows.detach().unsqueeze(-1))
    torch.testing.assert_close(out["target_value"], targets.mean())


def test_after_a_termination_the_network_is_not_asked():
    loss, batch = make_loss(), make_batch()
    expected = loss(batch)["loss"]
    batch["next", "observation"][batch["next", "terminated"].flatten()] = float("nan")
    torch.testing.assert_close(loss(batch)["loss"], expected)


def test_rows_of_sequences_and_one_hot_actions_give_the_same_loss():
    loss, batch = make_loss(), make_batch()
    expected = loss(batch)["loss"]
    torch.testing.assert_close(loss(batch.reshape(4, 4))["loss"], expected)
    batch["action"] = nn.functional.one_hot(batch["action"], 4).bool()
    torch.testing.assert_close(make_loss()(batch)["loss"], expected)


def test_n_step_rows_use_their_discount():
    batch = make_batch()
    plain = make_loss(gamma=0.5)(batch)["loss"]
    batch["gamma"] = torch.full((16, 1), 0.5)
    torch.testing.assert_close(make_loss(gamma=0.9)(batch)["loss"], plain)
    batch["gamma"] = torch.full((16, 1), 0.9)
    assert (make_loss(gamma=0.5)(batch)["loss"] - plain).abs() > 1e-3


def test_masked_actions_are_not_the_best_ones():
    loss, batch = make_loss(double_dqn=False), make_batch()
    forced = torch.zeros(16, 4, dtype=torch.bool)
    forced[:, 1] = True
    with torch.no_grad():
        before = loss(batch)["target_value"]
        loss.target_value_network.module[0].weight.view(5, 4, 3)[..., 1] += 0.1
        out = loss(batch.set(("next", "action_mask"), forced))
    following = loss.target_value_network.module(batch["next", "observation"])[..., 1].exp()
    atoms = batch["next", "reward"] + 0.99 * SUPPORT * ~batch["next", "terminated"]
    target = (categorical_projection(following, atoms, SUPPORT) * SUPPORT).sum(-1)
    torch.testing.assert_close(out["target_value"], target.mean())
    assert (out["target_value"] - before).abs() > 1e-3
    forced[int((~batch["next", "terminated"].flatten()).nonzero()[0])] = False
    with pytest.raises(PolicyError, match="allows no action in row"):
        loss(batch)


def test_the_support_moves_and_is_copied_with_the_loss():
    loss = make_loss()
    assert "support" not in loss.state_dict()
    twin = copy.deepcopy(loss).double()
    assert twin.support.dtype == torch.float64
    SoftUpdate(twin, tau=0.5).step()


def test_only_one_step_targets_exist_for_distributions():
    with pytest.raises(SpecError, match=r"takes TD0, not TDLambdaEstimator. For longer steps store n-step data"):
        make_loss().make_value_estimator("td_lambda")


def test_what_is_no_distribution_is_refused():
    def loss_on(net, **options):
        return DistributionalDQNLoss(TensorDictModule(net, ["observation"], ["action_value"]), **options)

    scores = nn.Sequential(nn.Linear(3, 20), nn.Unflatten(-1, (5, 4)))
    with pytest.raises(SpecError, match="no part of TensorDictModule says what the atoms are"):
        loss_on(scores)
    with pytest.raises(SpecError, match=r'"action_value" must be log-probabilities over the atoms.*log_softmax\(-2\)'):
        loss_on(scores, support=SUPPORT)(make_batch())
    with pytest.raises(SpecError, match="for the 3 atoms of the support"):
        loss_on(nn.Sequential(scores, LogSoftmax()), support=torch.linspace(0, 1, 3))(make_batch())
    with pytest.raises(SpecError, match=r"must be \[\*B, K, n\]; got \[16, 4\]"):
        loss_on(nn.Linear(3, 4), support=SUPPORT)(make_batch())
    batch = make_batch()
    batch["next", "reward"] = batch["next", "reward"].squeeze(-1)
    with pytest.raises(LossError, match=r"\[16, 1\].*\[16\]"):
        make_loss()(batch)
    with pytest.raises(SpecError, match="got 'mult_one_hot'"):
        make_loss(action_space=__import__("rl_core.specs").specs.MultiOneHot([2, 2]))


@pytest.mark.parametrize("support", [torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, 0.0]), torch.tensor([0, 1])])
def test_a_support_that_is_not_evenly_spaced_is_refused(support):
    with pytest.raises(SpecError, match="linspace"):
        check_support(support)


def test_expected_values_by_hand():
    log_probs = torch.tensor([[0.25, 1.0], [0.75, 0.0]]).log()
    torch.testing.assert_close(expected_value(log_probs, torch.tensor([-1.0, 1.0])), torch.tensor([0.5, -1.0]))
