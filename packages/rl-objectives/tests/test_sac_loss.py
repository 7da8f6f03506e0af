"""SAC in both versions against the papers' equations in plain float64, and what scripts rely on."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_core.errors import KeyMissingError, SpecError
from rl_core.exploration import ExplorationType, exploration_type
from rl_core.registry import registry
from rl_core.specs import Bounded
from rl_core.testing import LossKit
from rl_objectives import SACLoss, SACv1Loss, SoftUpdate, TDLambdaEstimator, ValueEstimators

GAMMA = 0.9


class RowNoise:
    """A normal policy whose "random" numbers are a function of the row, so that a subset of rows draws the same."""

    has_rsample = True

    def __init__(self, loc, scale):
        self.normal = Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)
        self.loc, self.scale = loc, scale

    def rsample(self):
        return self.loc + self.scale * torch.sin(50 * self.loc.detach())

    def log_prob(self, action):
        return self.normal.log_prob(action)


class Actor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, kind=RowNoise, trunk=None):
        super().__init__()
        self.trunk = nn.Identity() if trunk is None else trunk
        self.head = nn.Linear(3, 2)
        self.log_scale = nn.Parameter(torch.full((2,), -0.3))
        self.kind = kind

    def get_dist(self, tensordict):
        assert exploration_type() is ExplorationType.DETERMINISTIC
        loc = self.head(self.trunk(tensordict["observation"]))
        return self.kind(loc, self.log_scale.exp().expand_as(loc))


def squashed(loc, scale):
    return Independent(TransformedDistribution(Normal(loc, scale), TanhTransform(cache_size=1)), 1)


class Joined(nn.Sequential):
    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, -1))


def make_critic(hidden=5, activation=nn.Tanh):
    net = Joined(nn.Linear(5, hidden), activation(), nn.Linear(hidden, 1))
    return TensorDictModule(net, in_keys=["observation", "action"], out_keys=["state_action_value"])


def make_value():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])


def make_batch(size=12):
    torch.manual_seed(3)
    terminated = torch.rand(size, 1) < 0.3
    truncated = torch.rand(size, 1) < 0.3
    step = {
        "observation": torch.randn(size, 3),
        "reward": torch.randn(size, 1),
        "terminated": terminated,
        "done": terminated | truncated,
    }
    return TensorDict({"observation": torch.randn(size, 3), "action": torch.randn(size, 2), "next": step}, [size])


def make_loss(kind=SACLoss, actor=None, critic=None, **options):
    torch.manual_seed(4)
    networks = [actor or Actor(), critic or make_critic()]
    loss = kind(*networks, *([make_value()] if kind is SACv1Loss else []), **options)
    if loss.target_names:  # so that a target is not mistaken for its source
        with torch.no_grad():
            for name in loss.target_names:
                for weight in loss.get_submodule(f"target_{name}").buffers():
                    weight.mul_(0.8)
    loss.make_value_estimator(gamma=GAMMA)
    return loss


class TestSACKeepsItsPromises(LossKit):
    gradients = {"loss_actor": {"actor_network"}, "loss_qvalue": {"qvalue_network"}, "loss_alpha": {"log_alpha"}}
    network_outputs = {"action", "state_action_value"}
    kind = SACLoss

    def make_loss(self, **options):
        return make_loss(self.kind, target_entropy=-2.0, alpha_init=0.5, **options)

    def make_batch(self):
        return make_batch()


def sample(actor, observation):
    loc = actor.head(actor.trunk(observation))
    scale = actor.log_scale.exp()
    action = loc + scale * torch.sin(50 * loc.detach())
    log_prob = -0.5 * ((action - loc) / scale) ** 2 - scale.log() - 0.5 * torch.log(torch.tensor(2 * torch.pi))
    return action, log_prob.sum(-1, keepdim=True)


def values(ensemble, observation, action):
    joined = torch.cat([observation, action], -1)
    return [critic.module[2](critic.module[1](critic.module[0](joined))) for critic in ensemble.members]


def as_double(batch):
    return batch.apply(lambda entry: entry.double() if entry.is_floating_point() else entry)


DISTANCES = {"smooth_l1": F.smooth_l1_loss, "l2": F.mse_loss, "l1": F.l1_loss}


def reference(loss, batch, distance="smooth_l1", target_entropy=-2.0):
    """Haarnoja et al., 2018, arXiv 1812.05905, eq. 5 (critics), 7 (policy), 18 (temperature)."""
    alpha, step = loss.log_alpha.exp().detach(), batch["next"]
    with torch.no_grad():
        action, log_prob = sample(loss.actor_network, step["observation"])
        q1, q2 = values(loss.target_qvalue_network, step["observation"], action)
        soft = torch.min(q1, q2) - alpha * log_prob
        target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, soft)
    found = values(loss.qvalue_network, batch["observation"], batch["action"])
    qvalue = sum(DISTANCES[distance](q, target) for q in found)
    error = torch.stack([(q - target).abs() for q in found]).amax(0).detach()
    action, log_prob = sample(loss.actor_network, batch["observation"])
    frozen = copy.deepcopy(loss.qvalue_network).requires_grad_(False)
    actor = (alpha * log_prob - torch.min(*values(frozen, batch["observation"], action))).mean()
    temperature = -(loss.log_alpha * (log_prob.detach() + target_entropy)).mean()
    losses = {"loss_actor": actor, "loss_qvalue": qvalue, "loss_alpha": temperature}
    logs = {"alpha": alpha, "entropy": -log_prob.detach().mean(), "td_error": error.mean()}
    return losses, logs, error


@pytest.mark.parametrize("distance", list(DISTANCES))
@pytest.mark.parametrize("alpha", [1.5, 0.2])
def test_values_gradients_and_priorities_equal_plain_torch(distance, alpha):
    loss = make_loss(alpha_init=alpha, loss_function=distance).double()
    twin, batch = copy.deepcopy(loss), as_double(make_batch())
    losses, logs, error = reference(twin, batch, distance)
    out = loss(batch)
    for key, value in {**losses, **logs}.items():
        torch.testing.assert_close(out[key], value)
    torch.testing.assert_close(batch["td_error"], error)
    sum(out[key] for key in losses).backward()
    sum(losses.values()).backward()
    for (name, one), other in zip(loss.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


def test_version_1_equals_plain_torch():
    loss = make_loss(SACv1Loss, loss_function="l2").double()
    twin, batch = copy.deepcopy(loss), as_double(make_batch())
    out = loss(batch)
    # Haarnoja et al., 2018, arXiv 1801.01290, eq. 5 (state value), 7 (critics), 12 (policy)
    step, alpha, actor = batch["next"], torch.tensor(1.0, dtype=torch.float64), twin.actor_network
    with torch.no_grad():
        action, log_prob = sample(actor, batch["observation"])
        best = torch.min(*values(twin.qvalue_network, batch["observation"], action))
        next_value = twin.target_value_network.module(step["observation"])
        target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, next_value)
    expected = {
        "loss_value": F.mse_loss(twin.value_network.module(batch["observation"]), best - alpha * log_prob),
        "loss_qvalue": sum(
            F.mse_loss(q, target) for q in values(twin.qvalue_network, batch["observation"], batch["action"])
        ),
    }
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    (out["loss_value"] + out["loss_qvalue"]).backward()
    sum(expected.values()).backward()
    for one, other in zip(loss.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


class TestSACv1KeepsItsPromises(TestSACKeepsItsPromises):
    gradients = {**TestSACKeepsItsPromises.gradients, "loss_value": {"value_network"}}
    network_outputs = {"action", "state_action_value", "value"}
    kind = SACv1Loss


def test_a_value_network_asks_for_version_1():
    loss = SACLoss(Actor(), make_critic(), make_value(), alpha_init=0.5, delay_qvalue=True)
    assert type(loss) is SACv1Loss and type(copy.deepcopy(loss)) is SACv1Loss
    assert set(loss.target_names) == {"qvalue_network", "value_network"}
    keyed = SACLoss(actor_network=Actor(), qvalue_network=make_critic(), value_network=make_value())
    assert type(keyed) is SACv1Loss
    assert type(SACLoss(Actor(), make_critic())) is SACLoss
    assert registry.losses.get("sac") is SACLoss and registry.losses.get("sac_v1") is SACv1Loss


def test_a_squashed_policy_is_sampled_and_scored_by_torch():
    loss, batch = make_loss(actor=Actor(squashed)), make_batch()
    torch.manual_seed(0)
    out = loss(batch)
    torch.manual_seed(0)
    torch.randn(12, 2)  # the next action's
    distribution = squashed(loss.actor_network.head(batch["observation"]), loss.actor_network.log_scale.exp())
    torch.testing.assert_close(out["entropy"], -distribution.log_prob(distribution.rsample()).mean())


def test_only_termination_stops_the_bootstrap():
    loss, batch = make_loss(), make_batch()
    batch["next", "terminated"] = torch.zeros(12, 1, dtype=torch.bool)
    expected = loss(batch)["loss_qvalue"]
    batch["next", "done"] = torch.ones(12, 1, dtype=torch.bool)
    torch.testing.assert_close(loss(batch)["loss_qvalue"], expected)
    only_done = batch.exclude(("next", "terminated"))
    batch["next", "terminated"] = torch.ones(12, 1, dtype=torch.bool)
    assert loss(batch)["loss_qvalue"] != expected
    torch.testing.assert_close(loss(only_done)["loss_qvalue"], loss(batch)["loss_qvalue"])


def test_what_lies_behind_a_termination_may_be_nan():
    loss, batch = make_loss(), make_batch()
    expected = loss(batch)
    batch["next", "observation"][batch["next", "terminated"].squeeze(-1)] = float("nan")
    out = loss(batch)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)


def test_rows_with_a_discount_of_their_own_use_it():
    loss, batch = make_loss(), make_batch()
    steps = torch.randint(1, 4, (12, 1))
    by_count = loss(batch.clone().set("steps_to_next_obs", steps))
    batch["gamma"] = GAMMA**steps
    torch.testing.assert_close(loss(batch)["loss_qvalue"], by_count["loss_qvalue"])
    batch["gamma"] = torch.zeros(12, 1)
    found = values(loss.qvalue_network, batch["observation"], batch["action"])
    expected = sum(F.smooth_l1_loss(q, batch["next", "reward"]) for q in found)
    torch.testing.assert_close(loss(batch)["loss_qvalue"], expected)
    loss.set_keys(discount="elsewhere")
    assert loss(batch)["loss_qvalue"] != expected
    with pytest.raises(SpecError, match=r'"gamma" float32 \[12\]'):
        make_loss()(batch.set("gamma", torch.ones(12)))


def test_importance_weights_multiply_each_row_and_nothing_divides_by_them():
    loss, batch = make_loss(), make_batch()
    rows = make_loss(reduction="none")(batch)
    weight = torch.rand(12)
    batch["priority_weight"] = weight
    out = loss(batch)
    for key in ("loss_actor", "loss_qvalue", "loss_alpha"):
        torch.testing.assert_close(out[key], (rows[key] * weight).mean())
    batch["priority_weight"] = weight.unsqueeze(-1)
    torch.testing.assert_close(loss(batch)["loss_qvalue"], out["loss_qvalue"])
    plain = make_loss(use_prioritized_weights=False)(batch)
    torch.testing.assert_close(plain["loss_qvalue"], rows["loss_qvalue"].mean())
    with pytest.raises(KeyMissingError, match="prioritised sampler"):
        make_loss(use_prioritized_weights=True)(batch.exclude("priority_weight"))
    with pytest.raises(SpecError, match=r'"priority_weight" \[12, 2\]'):
        loss(batch.set("priority_weight", torch.rand(12, 2)))


def test_priorities_are_absolute_errors_and_zero_in_rows_that_do_not_count():
    batch = make_batch()
    make_loss()(batch)
    plain = batch["td_error"]
    assert plain.shape == (12, 1) and (plain > 0).all()
    valid = torch.arange(12) % 3 != 1
    batch.set(("collector", "mask"), valid)
    loss = make_loss(priority_type="squared")
    loss.set_keys(priority="weight_of_row")
    loss(batch)
    torch.testing.assert_close(batch["weight_of_row"], plain.square() * valid.unsqueeze(-1))


def test_the_temperature_stays_in_its_bounds_and_comes_back():
    loss, batch = make_loss(alpha_init=0.5, min_alpha=0.1, max_alpha=2.0, target_entropy=100.0), make_batch()
    with torch.no_grad():
        loss.log_alpha.fill_(5.0)
    out = loss(batch)
    assert out["alpha"].item() == pytest.approx(2.0) and loss.log_alpha.item() == pytest.approx(0.6931, abs=1e-4)
    loss.target_entropy = -100.0
    out = loss(batch)
    out["loss_alpha"].backward()
    assert loss.log_alpha.grad > 0  # too much entropy: a step of descent leads back inside
    loss.target_entropy = 100.0
    loss.log_alpha.grad = None
    loss(batch)["loss_alpha"].backward()
    assert loss.log_alpha.grad < 0


def test_a_fixed_temperature_is_no_parameter():
    loss, batch = make_loss(fixed_alpha=True, alpha_init=0.3), make_batch()
    assert "log_alpha" not in dict(loss.named_parameters()) and "log_alpha" in loss.state_dict()
    out = loss(batch)
    assert out["loss_alpha"].item() == 0 and out["alpha"].item() == pytest.approx(0.3)
    sum(value for key, value in out.items() if key.startswith("loss")).backward()


def test_the_automatic_target_entropy_is_minus_the_size_of_an_action():
    batch = make_batch()
    auto, given = make_loss(alpha_init=0.5), make_loss(alpha_init=0.5, target_entropy=-2.0)
    torch.testing.assert_close(auto(batch)["loss_alpha"], given(batch)["loss_alpha"])
    vectorised = make_loss(alpha_init=0.5, action_spec=Bounded(-1, 1, (64, 2)))
    torch.testing.assert_close(vectorised(batch)["loss_alpha"], given(batch)["loss_alpha"])
    auto.target_entropy = -7.0
    assert auto(batch)["loss_alpha"] != given(batch)["loss_alpha"]
    given.load_state_dict({**given.state_dict(), "target_entropy": torch.tensor(-7.0)})
    torch.testing.assert_close(auto(batch)["loss_alpha"], given(batch)["loss_alpha"])
    with pytest.raises(SpecError, match="no batch has told"):
        make_loss().alpha_loss(torch.zeros(3))


def test_parts_computed_apart_are_those_of_the_whole():
    loss, batch = make_loss(), make_batch()
    whole = loss(batch.clone())
    actor, logs = loss.actor_loss(batch)
    assert "td_error" not in batch.keys()  # noqa: SIM118
    qvalue, qvalue_logs = loss.qvalue_loss(batch)
    assert "td_error" in batch.keys()  # noqa: SIM118
    alpha = loss.alpha_loss(log_prob=logs["log_prob"].detach())
    for key, value in (("loss_actor", actor), ("loss_qvalue", qvalue), ("loss_alpha", alpha)):
        torch.testing.assert_close(value, whole[key])
    torch.testing.assert_close(qvalue_logs["td_error"], whole["td_error"])
    v1 = make_loss(SACv1Loss)
    torch.testing.assert_close(v1.value_loss(batch)[0], v1(batch)["loss_value"])


def test_a_call_with_keywords_takes_one_tensor_per_entry():
    loss, batch = make_loss(), make_batch()
    expected = loss(batch)
    step = {f"next_{key}": value for key, value in batch["next"].items()}
    found = loss(observation=batch["observation"], action=batch["action"], **step)
    for key, value in zip(loss.out_keys, found, strict=True):
        torch.testing.assert_close(value, expected[key])


def test_each_loss_moves_its_own_weights_alone():
    loss, batch = make_loss(), make_batch()
    owners = {"loss_actor": "actor_network.", "loss_qvalue": "qvalue_network.", "loss_alpha": "log_alpha"}
    for key, owner in owners.items():
        loss.zero_grad()
        loss(batch)[key].backward()
        for name, parameter in loss.named_parameters():
            moved = parameter.grad is not None and bool((parameter.grad != 0).any())
            assert moved == name.startswith(owner), (key, name)
    assert all(parameter.requires_grad for parameter in loss.parameters())


def test_critics_get_back_their_gradient_when_a_call_fails():
    loss = make_loss()
    loss.qvalue_network.members[1].module[0].weight.requires_grad_(False)  # a layer that the user has frozen
    with pytest.raises(KeyMissingError):
        loss(make_batch().exclude("observation"))

    def explode(*_):
        raise RuntimeError("boom")

    handle = loss.qvalue_network.members[1].module[2].register_forward_hook(explode)
    with pytest.raises(RuntimeError, match="boom"):
        loss(make_batch())
    handle.remove()
    flags = [parameter.requires_grad for parameter in loss.qvalue_network.parameters()]
    assert flags.count(False) == 1


def test_a_shared_trunk_is_moved_by_both_losses_or_by_the_actor_alone():
    for separate in (False, True):
        trunk = nn.Linear(3, 3)

        class SharedCritic(nn.Module):
            def __init__(self, trunk):
                super().__init__()
                self.trunk, self.head = trunk, nn.Linear(5, 1)

            def forward(self, observation, action):
                return self.head(torch.cat([self.trunk(observation), action], -1))

        critics = [
            TensorDictModule(SharedCritic(trunk), in_keys=["observation", "action"], out_keys=["state_action_value"])
            for _ in range(2)
        ]
        loss = SACLoss(Actor(trunk=trunk), critics, separate_losses=separate)
        assert sum(parameter is trunk.weight for parameter in loss.parameters()) == 1
        out = loss(make_batch())
        out["loss_qvalue"].backward()
        assert (trunk.weight.grad is None) == separate
        assert critics[1].module.head.weight.grad.abs().sum() > 0
        out["loss_actor"].backward()
        assert trunk.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("critics", ["copies", "list", "no parameters"])
def test_every_kind_of_critics_trains_follows_and_reloads(critics):
    def build():
        if critics == "copies":
            return make_critic()
        if critics == "list":
            return [make_critic(5), make_critic(7, nn.ReLU)]
        net = TensorDictModule(
            lambda obs, act: obs.sum(-1, keepdim=True) * act.sum(-1, keepdim=True),
            in_keys=["observation", "action"],
            out_keys=["state_action_value"],
        )
        return [net, make_critic()]

    torch.manual_seed(0)
    loss, batch = SACLoss(Actor(), build()), make_batch()
    updater = SoftUpdate(loss, tau=0.5)
    parameters = list(loss.parameters())
    assert len({id(parameter) for parameter in parameters}) == len(parameters)
    before = [target.clone() for _, target in updater.tensors()]
    with torch.no_grad():
        for source, _ in updater.tensors():
            source.add_(1)
    updater.step()
    for old, (_, target) in zip(before, updater.tensors(), strict=True):
        torch.testing.assert_close(target, old + 0.5)
    loss(batch)["loss_qvalue"].backward()
    for name, parameter in loss.qvalue_network.named_parameters():
        assert parameter.grad is not None and (parameter.grad != 0).any(), name
    other = SACLoss(Actor(), build())
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other(batch)["loss_qvalue"], loss(batch)["loss_qvalue"])


def test_views_build_one_optimiser_per_network():
    loss = make_loss()
    actor = list(loss.actor_network_params.values(True, True))
    critics = list(loss.qvalue_network_params.flatten_keys().values())
    found = {id(parameter) for parameter in [*actor, *critics, loss.log_alpha]}
    assert found == {id(parameter) for parameter in loss.parameters()}
    assert not any(value.requires_grad for value in loss.target_qvalue_network_params.values(True, True))
    assert not any(value.requires_grad for value in loss.target_actor_network_params.values(True, True))


def test_a_delayed_actor_samples_the_next_action():
    loss, batch = make_loss(delay_actor=True), make_batch()
    assert set(loss.target_names) == {"actor_network", "qvalue_network"}
    expected = loss(batch)["loss_qvalue"]
    with torch.no_grad():
        for parameter in loss.actor_network.parameters():
            parameter.add_(1)
    torch.testing.assert_close(loss(batch)["loss_qvalue"], expected)


def test_sequences_may_have_targets_of_many_steps():
    loss, batch = make_loss(), make_batch().reshape(3, 4)
    batch["next", "done"][:, -1] = True
    loss.make_value_estimator(ValueEstimators.TDLambda, gamma=GAMMA, lmbda=0.0)
    assert type(loss.value_estimator) is TDLambdaEstimator
    one_step = make_loss()
    torch.testing.assert_close(loss(batch)["loss_qvalue"], one_step(batch)["loss_qvalue"])
    loss.make_value_estimator("td_lambda", gamma=GAMMA, lmbda=0.9)
    assert loss(batch)["loss_qvalue"] != one_step(batch)["loss_qvalue"]
    with pytest.raises(SpecError, match="discount per row"):
        loss(batch.set("gamma", torch.ones(3, 4, 1)))
    with pytest.raises(SpecError, match="no state value for GAE"):
        loss.make_value_estimator("gae")
    assert type(loss.value_estimator) is TDLambdaEstimator


def test_shapes_that_would_broadcast_are_refused():
    loss = make_loss()
    for key, shape in ((("next", "reward"), (12,)), (("next", "terminated"), (12,)), (("next", "reward"), (12, 2))):
        batch = make_batch()
        batch[key] = torch.zeros(shape, dtype=batch[key].dtype)
        with pytest.raises(SpecError, match=r"\[12, 1\].*nothing is broadcast"):
            loss(batch)

    class Scalar(Joined):
        def forward(self, *inputs):
            return super().forward(*inputs).squeeze(-1)

    net = TensorDictModule(Scalar(nn.Linear(5, 1)), ["observation", "action"], ["state_action_value"])
    with pytest.raises(SpecError, match="log-probabilities"):
        make_loss(critic=net)(make_batch())
    with pytest.raises(SpecError, match="Independent"):
        make_loss(actor=Actor(lambda loc, scale: Normal(loc, scale)))(make_batch())


def test_wrong_arguments_say_what_is_right():
    with pytest.raises(SpecError, match="actor_network with get_dist"):
        SACLoss(make_critic(), make_critic())
    with pytest.raises(SpecError, match="qvalue_network to be a module with in_keys; got Linear"):
        SACLoss(Actor(), nn.Linear(3, 1))
    with pytest.raises(SpecError, match="a number or 'auto'; got 'full'"):
        make_loss(target_entropy="full")
    for options in ({"alpha_init": 0}, {"min_alpha": 2.0}, {"max_alpha": 0.5}, {"min_alpha": 0.0}):
        with pytest.raises(SpecError, match="min_alpha <= alpha_init <= max_alpha"):
            make_loss(**options)
    with pytest.raises(SpecError, match="'smooth_l1'; got 'huber'"):
        make_loss(loss_function="huber")
    with pytest.raises(SpecError, match="True, False or 'auto'"):
        make_loss(use_prioritized_weights="yes")
    with pytest.raises(SpecError, match=r"has no rsample.*DiscreteSACLoss"):
        make_loss(actor=Actor(lambda loc, scale: torch.distributions.Bernoulli(logits=loc)))(make_batch())
    blind = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_action_value"])
    with pytest.raises(SpecError, match='qvalue_network must read "action"'):
        make_loss(critic=blind)(make_batch())
    other = TensorDictModule(Joined(nn.Linear(5, 1)), in_keys=["observation", "action"], out_keys=["q"])
    with pytest.raises(KeyMissingError, match='writes "q", not "state_action_value"'):
        make_loss(critic=other)(make_batch())


def test_gamma_may_be_given_at_once():
    batch = make_batch()
    loss = SACLoss(Actor(), make_critic(), gamma=0.5)
    assert loss.value_estimator.gamma == 0.5
    loss(batch)


def test_it_compiles_into_one_graph():
    loss, batch = make_loss(min_alpha=0.01), make_batch()
    twin = copy.deepcopy(loss)
    expected = twin(batch.clone())
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    out = compiled(batch)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    for result in (out, expected):
        sum(value for key, value in result.items() if key.startswith("loss")).backward()
    for (name, one), other in zip(loss.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    assert "td_error" in batch.keys()  # noqa: SIM118
