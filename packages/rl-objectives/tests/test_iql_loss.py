"""Implicit Q-learning against the paper's equations in plain torch, gradient routing, and batches that cannot work."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import (
    Categorical,
    Independent,
    Normal,
    OneHotCategorical,
    TanhTransform,
    TransformedDistribution,
)

from rl_core import registry
from rl_core.errors import KeyMissingError, SpecError
from rl_core.testing import LossKit
from rl_core.testing.kit import overrides_check
from rl_objectives import DiscreteIQLLoss, IQLLoss, SoftUpdate, ValueEstimators
from rl_objectives.functional.advantage_weighting import advantage_weight, expectile_loss


class GaussianActor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, squashed=False, trunk=None):
        super().__init__()
        self.trunk = nn.Identity() if trunk is None else trunk
        self.head = nn.Linear(3, 2)
        self.log_scale = nn.Parameter(torch.tensor([-0.2, 0.1]))
        self.squashed = squashed

    def get_dist(self, tensordict):
        normal = Normal(self.head(self.trunk(tensordict["observation"])), self.log_scale.exp())
        if self.squashed:
            normal = TransformedDistribution(normal, TanhTransform(cache_size=1))
        return Independent(normal, 1)


class DiscreteActor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, kind):
        super().__init__()
        self.head, self.kind = nn.Linear(3, 4), kind

    def get_dist(self, tensordict):
        return self.kind(logits=self.head(tensordict["observation"]))


class Critic(nn.Module):
    def __init__(self, cells=5, outputs=1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5 if outputs == 1 else 3, cells), nn.Tanh(), nn.Linear(cells, outputs))

    def forward(self, *inputs):
        return self.net(torch.cat(inputs, -1))


def critic(cells=5):
    return TensorDictModule(Critic(cells), in_keys=["observation", "action"], out_keys=["state_action_value"])


def state_value(trunk=None):
    net = nn.Linear(3, 1) if trunk is None else nn.Sequential(trunk, nn.Linear(3, 1))
    return TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])


def make_loss(kind=IQLLoss, **options):
    """Two critics of different widths, and targets that have fallen behind."""
    torch.manual_seed(0)
    loss = kind(
        GaussianActor(), [critic(5), critic(4)], state_value(), **{"expectile": 0.7, "temperature": 3.0, **options}
    )
    fall_behind(loss)
    return loss


def fall_behind(loss):
    with torch.no_grad():
        for pair in loss.target_pairs():
            pair.tensors()[1].add_(torch.randn_like(pair.tensors()[1]) * 0.3)


def make_batch(size=16, dtype=torch.float32):
    torch.manual_seed(1)
    terminated = torch.rand(size, 1) < 0.3
    step = {
        "observation": torch.randn(size, 3, dtype=dtype),
        "reward": torch.randn(size, 1, dtype=dtype),
        "terminated": terminated,
        "done": terminated | (torch.rand(size, 1) < 0.3),
    }
    root = {"observation": torch.randn(size, 3, dtype=dtype), "action": torch.rand(size, 2, dtype=dtype) * 1.8 - 0.9}
    return TensorDict({**root, "next": step}, [size])


class TestIQLKeepsItsPromises(LossKit):
    gradients = {
        "loss_actor": {"actor_network"},
        "loss_qvalue": {"qvalue_network"},
        "loss_value": {"value_network"},
    }
    network_outputs = {"value", "state_action_value", "action"}

    def make_loss(self, **options):
        return make_loss(**options)

    def make_batch(self):
        return make_batch().set("gamma", torch.rand(16, 1)).set("priority_weight", torch.rand(16))

    @overrides_check(reason="priorities are written into the batch, and nothing else")
    def test_the_batch_is_left_alone(self):
        batch = self.make_batch()
        before = batch.clone()
        self.run(self.make_loss(), batch)
        assert set(batch.keys(True, True)) - set(before.keys(True, True)) == {"td_error"}
        assert (batch.exclude("td_error") == before).all()


class TestDiscreteIQLKeepsItsPromises(TestIQLKeepsItsPromises):
    def make_loss(self, **options):
        return make_discrete(**options)

    def make_batch(self):
        return discrete_batch()


def reference(loss, batch, gamma, q_values=None):
    """Kostrikov et al., 2021, eq. 5 to 7, per row."""
    tau, beta = float(loss.expectile), float(loss.temperature)
    ask = q_values or (lambda net: net.module(batch["observation"], batch["action"]))
    online = [ask(net) for net in loss.qvalue_network.members]
    frozen = [ask(net) for net in (loss.target_qvalue_network if loss.target_names else loss.qvalue_network).members]
    best_guess = torch.min(frozen[0], frozen[1]).detach()
    value = loss.value_network.module(batch["observation"])
    following = loss.value_network.module(batch["next", "observation"]).detach()
    alive = 1 - batch["next", "terminated"].to(value.dtype)
    target = batch["next", "reward"] + gamma * alive * following
    gap = best_guess - value
    weight = (beta * gap.detach()).exp().clamp(max=100.0)
    log_prob = loss.actor_network.get_dist(batch).log_prob(batch["action"])
    return {
        "loss_value": ((tau - (gap < 0).to(value.dtype)).abs() * gap**2).squeeze(-1),
        "loss_qvalue": sum(F.smooth_l1_loss(q, target, reduction="none") for q in online).squeeze(-1),
        "loss_actor": -weight.squeeze(-1) * log_prob,
        "error": torch.max(*[(q - target).abs() for q in online]).detach(),
    }


def check_values_and_gradients(loss, batch, expected):
    result = loss(batch)
    for key in ("loss_value", "loss_qvalue", "loss_actor"):
        torch.testing.assert_close(result[key], expected[key].mean())
    weights = list(loss.parameters())
    total = sum(expected[key].mean() for key in ("loss_value", "loss_qvalue", "loss_actor"))
    ours = sum(value for key, value in result.items() if key.startswith("loss"))
    for one, other in zip(torch.autograd.grad(ours, weights), torch.autograd.grad(total, weights), strict=True):
        torch.testing.assert_close(one, other)
    return result


@pytest.mark.parametrize("delay", [True, False])
@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_values_and_gradients_equal_the_paper(expectile, delay):
    loss = make_loss(expectile=expectile, delay_qvalue=delay).double()
    loss.make_value_estimator(gamma=0.9)
    batch = make_batch(dtype=torch.float64)
    check_values_and_gradients(loss, batch, reference(loss, batch, 0.9))


def test_a_discount_per_row_takes_the_place_of_gamma():
    loss, batch = make_loss().double(), make_batch(dtype=torch.float64)
    batch["gamma"] = torch.rand(16, 1, dtype=torch.float64)
    check_values_and_gradients(loss, batch, reference(loss, batch, batch["gamma"]))


def test_a_truncated_step_bootstraps_and_a_terminated_one_does_not():
    loss = make_loss()
    loss.make_value_estimator(gamma=0.5)
    batch = make_batch(4)
    batch["next", "terminated"] = torch.tensor([[True], [False], [False], [True]])
    batch["next", "done"] = torch.tensor([[True], [True], [False], [True]])
    changed = batch.clone()
    changed["next", "observation"][batch["next", "terminated"].squeeze(-1)] += 100.0
    assert torch.equal(loss(batch)["loss_qvalue"], loss(changed)["loss_qvalue"])
    changed["next", "observation"][1] += 1.0
    assert not torch.equal(loss(batch)["loss_qvalue"], loss(changed)["loss_qvalue"])
    assert not torch.equal(loss(batch.exclude(("next", "terminated")))["loss_qvalue"], loss(batch)["loss_qvalue"])


def test_weights_multiply_every_loss_and_priorities_are_the_largest_absolute_error():
    loss, batch = make_loss().double(), make_batch(dtype=torch.float64)
    loss.make_value_estimator(gamma=0.9)
    expected = reference(loss, batch, 0.9)
    weight = torch.rand(16, dtype=torch.float64)
    result = loss(batch.set("priority_weight", weight))
    for key in ("loss_value", "loss_qvalue", "loss_actor"):
        torch.testing.assert_close(result[key], (weight * expected[key]).mean())
    torch.testing.assert_close(batch["td_error"], expected["error"])
    torch.testing.assert_close(result["td_error"], expected["error"].mean())


def test_a_huge_advantage_gets_the_largest_weight_and_not_infinity():
    loss, batch = make_loss(temperature=1e6), make_batch()
    log_prob = loss.actor_network.get_dist(batch).log_prob(batch["action"])
    rows = make_loss(temperature=1e6, reduction="none")(batch)["loss_actor"]
    share = (rows / -log_prob).detach()
    assert ((share.sub(100).abs() < 1e-3) | (share.abs() < 1e-3)).all()
    assert share.max() > 99
    assert loss(batch)["loss_actor"].isfinite()


@given(st.floats(0.05, 0.95), st.integers(0, 100))
def test_the_minimiser_of_the_expectile_loss_splits_the_pull_as_the_expectile_says(tau, seed):
    values = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low, high = values.min(), values.max()
    for _ in range(60):
        middle = (low + high) / 2
        pull = tau * (values - middle).clamp(min=0).sum() - (1 - tau) * (middle - values).clamp(min=0).sum()
        low, high = (middle, high) if pull > 0 else (low, middle)
    around = torch.stack([low - 1e-3, low, low + 1e-3])
    cost = torch.stack([expectile_loss(values - guess, tau).sum() for guess in around])
    assert cost.argmin() == 1


def test_an_advantage_weight_has_no_gradient_and_no_overflow():
    advantage = torch.tensor([-2.0, 0.0, 1.0, 1e30, math.inf], requires_grad=True)
    weight = advantage_weight(advantage, 2.0, 50.0)
    assert not weight.requires_grad
    torch.testing.assert_close(weight, torch.tensor([math.exp(-4), 1.0, math.exp(2.0), 50.0, 50.0]))


def test_each_loss_reaches_its_network_only_even_with_shared_weights():
    trunk = nn.Linear(3, 3)
    shared = {id(weight) for weight in trunk.parameters()}

    class OnTrunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.head = trunk, nn.Linear(5, 1)

        def forward(self, observation, action):
            return self.head(torch.cat([self.trunk(observation), action], -1))

    def build(separate):
        nets = [TensorDictModule(OnTrunk(), ["observation", "action"], ["state_action_value"]) for _ in range(2)]
        return IQLLoss(GaussianActor(trunk=trunk), nets, state_value(trunk), separate_losses=separate)

    for separate in (True, False):
        loss = build(separate)
        result = loss(make_batch())
        (result["loss_qvalue"] + result["loss_value"]).backward()
        for weight in loss.parameters():
            if id(weight) in shared:
                assert (weight.grad is None) is separate
                weight.grad = None


def test_entropy_is_the_policys_in_closed_form_or_by_sampling():
    loss, batch = make_loss(), make_batch()
    expected = (0.5 * math.log(2 * math.pi * math.e) * 2 + loss.actor_network.log_scale.sum()).detach()
    torch.testing.assert_close(loss(batch)["entropy"], expected)
    torch.manual_seed(0)
    squashed = IQLLoss(GaussianActor(squashed=True), [critic(), critic()], state_value())
    torch.manual_seed(3)
    value = squashed(batch)["entropy"]
    torch.manual_seed(3)
    distribution = squashed.actor_network.get_dist(batch)
    sample = distribution.rsample((1,))
    torch.testing.assert_close(value, -distribution.log_prob(sample).mean().detach())


def test_different_critics_have_targets_that_move_by_half():
    loss = IQLLoss(GaussianActor(), [critic(5), critic(4)], state_value())
    assert loss.target_names == ["qvalue_network"]
    updater = SoftUpdate(loss, tau=0.5)
    before = [target.clone() for _, target in updater.tensors()]
    with torch.no_grad():
        for weight in loss.parameters():
            weight.add_(1.0)
    updater.step()
    for old, (_, target) in zip(before, updater.tensors(), strict=True):
        torch.testing.assert_close(target, old + 0.5)
    weights = [id(weight) for weight in loss.parameters()]
    assert len(weights) == len(set(weights)) == 2 + 1 + 2 * 4 + 2
    for name in ("actor_network", "qvalue_network", "value_network"):
        views = getattr(loss, f"{name}_params").values(True, True)
        assert {weight.data_ptr() for weight in views} <= {weight.data_ptr() for weight in loss.parameters()}
    assert not any(weight.requires_grad for weight in loss.target_qvalue_network_params.values(True, True))


def test_one_critic_becomes_several_that_start_apart():
    torch.manual_seed(0)
    loss = IQLLoss(GaussianActor(), critic(), state_value(), num_qvalue_nets=3)
    batch = make_batch()
    values = loss.critic_values(batch, batch["action"])
    assert values.shape == (3, 16, 1)
    assert not torch.allclose(values[0], values[1])
    assert loss(batch)["loss_qvalue"].isfinite()


def test_other_estimators_and_renamed_keys_work():
    loss, batch = make_loss(), make_batch()
    expected = loss(batch)["loss_qvalue"]
    renamed = copy.deepcopy(loss)
    renamed.set_keys(reward="r", done="d", terminated="t", priority="p")
    for old, new in (("reward", "r"), ("done", "d"), ("terminated", "t")):
        batch.rename_key_(("next", old), ("next", new))
    torch.testing.assert_close(renamed(batch)["loss_qvalue"], expected)
    assert "p" in batch
    sequences = make_batch().view(4, 4)
    loss.make_value_estimator(ValueEstimators.TDLambda, gamma=0.9, lmbda=0.8)
    assert loss(sequences)["loss_qvalue"].isfinite()
    with pytest.raises(SpecError, match="GAE"):
        loss.make_value_estimator("gae")


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        (("next", "reward"), (16,)),
        (("next", "reward"), (16, 2)),
        (("next", "terminated"), (16,)),
        ("gamma", (16,)),
        ("priority_weight", (16, 2)),
        ("action", (16, 1)),
    ],
)
def test_entries_that_would_broadcast_are_refused_by_name(key, shape):
    batch = make_batch()
    batch[key] = torch.zeros(shape, dtype=torch.bool) if key[-1] == "terminated" else torch.rand(shape)
    name = key if isinstance(key, str) else key[-1]
    with pytest.raises((SpecError, RuntimeError), match=name if name != "action" else "action|mat1"):
        make_loss()(batch)


def test_a_value_network_without_trailing_dimension_is_refused():
    net = TensorDictModule(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), ["observation"], ["state_value"])
    with pytest.raises(SpecError, match=r"state_value|one shape|values of next states"):
        IQLLoss(GaussianActor(), [critic(), critic()], net)(make_batch())


def test_options_are_checked_at_construction():
    for options in ({"expectile": 1.0}, {"temperature": -1.0}, {"max_weight": 0.0}, {"loss_function": "l3"}):
        with pytest.raises(SpecError):
            make_loss(**options)
    with pytest.raises(SpecError, match="get_dist"):
        IQLLoss(state_value(), critic(), state_value())
    with pytest.raises(KeyMissingError, match="next"):
        make_loss()(make_batch().exclude(("next", "observation")))


def test_the_expectile_and_the_temperature_may_be_scheduled():
    loss, batch = make_loss().double(), make_batch(dtype=torch.float64)
    loss.make_value_estimator(gamma=0.9)
    loss.expectile, loss.temperature = 0.95, 0.5
    check_values_and_gradients(loss, batch, reference(loss, batch, 0.9))


# ---- discrete actions


def make_discrete(kind=OneHotCategorical, **options):
    torch.manual_seed(0)
    nets = [
        TensorDictModule(Critic(cells, 4), in_keys=["observation"], out_keys=["state_action_value"]) for cells in (5, 6)
    ]
    loss = DiscreteIQLLoss(
        DiscreteActor(kind), nets, state_value(), **{"expectile": 0.8, "temperature": 2.0, **options}
    )
    fall_behind(loss)
    return loss


def discrete_batch(form="one_hot", dtype=torch.float32):
    index = torch.arange(16) % 4
    return make_batch(dtype=dtype).set("action", F.one_hot(index, 4) if form == "one_hot" else index)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("form", ["one_hot", "categorical"])
def test_discrete_values_and_gradients_equal_the_paper(form, named):
    kind = OneHotCategorical if form == "one_hot" else Categorical
    loss = make_discrete(kind, action_space=form if named else None).double()
    loss.make_value_estimator(gamma=0.9)
    batch = discrete_batch(form, torch.float64)
    index = torch.arange(16) % 4

    def ask(net):
        return net.module(batch["observation"]).gather(-1, index.unsqueeze(-1))

    check_values_and_gradients(loss, batch, reference(loss, batch, 0.9, ask))


def test_actions_of_another_space_are_refused():
    loss = make_discrete(action_space="one_hot")
    with pytest.raises(SpecError, match="one_hot"):
        loss(discrete_batch("categorical"))
    with pytest.raises(SpecError, match="action"):
        make_discrete(Categorical)(discrete_batch("one_hot"))


def test_the_losses_are_registered():
    assert registry.losses.get("iql") is IQLLoss
    assert registry.losses.get("discrete_iql") is DiscreteIQLLoss
