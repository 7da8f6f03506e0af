"""Conservative Q-learning against the paper's equations, written out row by row and action by action."""

import math

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils._python_dispatch import TorchDispatchMode

from rl_core import registry
from rl_core.errors import SpecError
from rl_core.specs import Bounded, Categorical, Composite, Unbounded
from rl_core.testing import LossKit
from rl_core.testing.kit import overrides_check
from rl_objectives import CQLLoss, SoftUpdate
from rl_objectives.functional.cql import conservative_gap, soft_maximum
from rl_objectives.losses.action_box import action_box

COUNT = 3


class GridNormal(Independent):
    """A normal whose draws are fixed quantiles, so that a loss has one value."""

    def rsample_and_log_prob(self, shape=()):
        normal = self.base_dist
        noise = torch.full_like(normal.loc, 0.3)
        if shape:
            steps = torch.linspace(-1, 1, shape[0], dtype=noise.dtype)
            noise = steps.view(-1, *[1] * noise.ndim).expand(*shape, *noise.shape)
        value = normal.loc + normal.scale * noise
        return value, self.log_prob(value)


class GridActor(nn.Module):
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


def critic(cells=5):
    return TensorDictModule(Critic(cells), in_keys=["observation", "action"], out_keys=["state_action_value"])


class GridCQLLoss(CQLLoss):
    """Uniform actions on a grid as well."""

    def _uniform_actions(self, batch):
        steps = torch.linspace(0, 1, self.num_random + 2, dtype=batch["action"].dtype)[1:-1]
        actions, density = super()._uniform_actions(batch)
        low, high = self.action_low, self.action_high
        return (low + (high - low) * steps.view(-1, 1, 1)).expand_as(actions), density


def make_loss(kind=CQLLoss, **options):
    torch.manual_seed(0)
    loss = kind(GridActor(), [critic(5), critic(4)], **{"num_random": COUNT, "alpha_init": 0.4, **options})
    with torch.no_grad():
        for pair in loss.target_pairs():
            pair.tensors()[1].add_(torch.randn_like(pair.tensors()[1]) * 0.3)
    return loss


def make_batch(size=8, dtype=torch.float32):
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


class TestCQLKeepsItsPromises(LossKit):
    gradients = {
        "loss_actor": {"actor_network"},
        "loss_actor_bc": {"actor_network"},
        "loss_qvalue": {"qvalue_network"},
        "loss_cql": {"qvalue_network"},
        "loss_alpha": set(),
    }
    parameters = {"loss_alpha": {"log_alpha"}}
    network_outputs = {"state_action_value", "action"}

    def make_loss(self, **options):
        return make_loss(GridCQLLoss, **options)

    def make_batch(self):
        return make_batch().set("priority_weight", torch.rand(8))

    @overrides_check(reason="priorities are written into the batch, and nothing else")
    def test_the_batch_is_left_alone(self):
        batch = self.make_batch()
        before = batch.clone()
        self.run(self.make_loss(), batch)
        assert set(batch.keys(True, True)) - set(before.keys(True, True)) == {"td_error"}
        assert (batch.exclude("td_error") == before).all()

    @overrides_check(reason="temperatures are parameters that belong to no network")
    def test_each_loss_moves_its_networks_and_no_other(self):
        loss, batch = self.make_loss(), self.make_batch()
        assert set(self.losses(loss, batch)) == set(self.gradients)
        for key, names in self.gradients.items():
            loss.zero_grad()
            self.losses(loss, batch)[key].backward()
            moved = {name for name, weight in loss.named_parameters() if weight.grad is not None and weight.grad.any()}
            assert {name.split(".")[0] for name in moved} == names | self.parameters.get(key, set())


class TestCQLWithAPriceKeepsItsPromises(TestCQLKeepsItsPromises):
    gradients = {**TestCQLKeepsItsPromises.gradients, "loss_alpha_prime": set()}
    parameters = {"loss_alpha": {"log_alpha"}, "loss_alpha_prime": {"log_alpha_prime"}}

    def make_loss(self, **options):
        return make_loss(GridCQLLoss, with_lagrange=True, lagrange_thresh=0.7, **options)


def normal_log_prob(actor, observation, action):
    loc, scale = actor.head(observation), actor.log_scale.exp()
    return (-((action - loc) ** 2) / (2 * scale**2) - scale.log() - 0.5 * math.log(2 * math.pi)).sum(-1)


def draws(actor, observation, count):
    """The actions of GridNormal, and their log-densities."""
    noises = [0.3] if count is None else torch.linspace(-1, 1, count, dtype=observation.dtype).tolist()
    actions = [actor.head(observation) + actor.log_scale.exp() * noise for noise in noises]
    return [(action, normal_log_prob(actor, observation, action)) for action in actions]


def reference_target(loss, batch, gamma, i):
    """Kumar et al., 2020, eq. 4, the Bellman target of a row."""
    actor, after = loss.actor_network, batch["next", "observation"][i]
    nets = [net.module for net in loss.target_qvalue_network.members]
    if loss.max_q_backup:
        several = [action for action, _ in draws(actor, after, COUNT)]
        value = min(max(net(after, action) for action in several) for net in nets)
    else:
        ((action, log_prob),) = draws(actor, after, None)
        value = min(net(after, action) for net in nets)
        if not loss.deterministic_backup:
            value = value - loss.alpha * log_prob
    alive = 0.0 if batch["next", "terminated"][i] else 1.0
    return (batch["next", "reward"][i] + gamma * alive * value).detach()


def reference_gap(loss, batch, net, uniform, i):
    """Kumar et al., 2020, appendix F: the importance-weighted soft maximum less the value of the data."""
    actor, now, after = loss.actor_network, batch["observation"][i], batch["next", "observation"][i]
    density = -sum((loss.action_high - loss.action_low).expand(2).log())
    proposals = [(action, density) for action in uniform[:, i]]
    proposals += [*draws(actor, now, COUNT), *draws(actor, after, COUNT)]
    assert len(proposals) == 3 * COUNT
    temperature = float(loss.temperature)
    terms = [(net(now, a.detach()) / temperature - p.detach()).exp() for a, p in proposals]
    return float(loss.min_q_weight) * (temperature * sum(terms).log() - net(now, batch["action"][i]))


def reference(loss, batch, gamma, uniform):
    actor, nets = loss.actor_network, [net.module for net in loss.qvalue_network.members]
    rows = {name: [] for name in ("loss_actor", "loss_actor_bc", "loss_qvalue", "loss_cql", "loss_alpha", "price")}
    alpha = loss.log_alpha.exp().detach()
    for i in range(len(batch)):
        now, action = batch["observation"][i], batch["action"][i]
        ((fresh, log_prob),) = draws(actor, now, None)
        rows["loss_actor"].append(alpha * log_prob - min(net(now, fresh) for net in nets))
        rows["loss_actor_bc"].append(alpha * log_prob - normal_log_prob(actor, now, action))
        target = reference_target(loss, batch, gamma, i)
        rows["loss_qvalue"].append(sum(F.smooth_l1_loss(net(now, action), target) for net in nets))
        gaps = [reference_gap(loss, batch, net, uniform, i) for net in nets]
        if loss.with_lagrange:
            price, limit = loss.log_alpha_prime.exp(), float(loss.lagrange_thresh)
            rows["loss_cql"].append(price.detach() * sum(gap - limit for gap in gaps))
            rows["price"].append(-0.5 * price * sum(gap.detach() - limit for gap in gaps))
        else:
            rows["loss_cql"].append(sum(gaps))
        rows["loss_alpha"].append(-loss.log_alpha * (log_prob.detach() - 2))
    return {name: torch.stack([value.squeeze() for value in values]) for name, values in rows.items() if values}


OPTIONS = [
    {},
    {"temperature": 0.5, "min_q_weight": 5.0},
    {"max_q_backup": True},
    {"deterministic_backup": False},
    {"with_lagrange": True, "lagrange_thresh": 0.7},
    {"action_spec": Bounded(torch.tensor([-1.0, -3.0]), torch.tensor([1.0, 2.0]))},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_values_and_gradients_equal_the_paper(options):
    loss, batch = make_loss(**options).double(), make_batch(4, torch.float64)
    loss.make_value_estimator(gamma=0.9)
    if loss.with_lagrange:
        with torch.no_grad():
            loss.log_alpha_prime.fill_(0.3)
    torch.manual_seed(5)
    result = loss(batch)
    torch.manual_seed(5)
    low, high = loss.action_low, loss.action_high
    uniform = low + (high - low) * torch.rand(COUNT, 4, 2, dtype=torch.float64)
    expected = reference(loss, batch, 0.9, uniform)
    expected["loss_alpha_prime"] = expected.pop("price", None)
    weights = list(loss.parameters())
    for key, rows in expected.items():
        if rows is None:
            continue
        torch.testing.assert_close(result[key], rows.mean())
        ours = torch.autograd.grad(result[key], weights, retain_graph=True, allow_unused=True)
        theirs = torch.autograd.grad(rows.mean(), weights, retain_graph=True, allow_unused=True)
        for (name, _), one, other in zip(loss.named_parameters(), ours, theirs, strict=True):
            # the actor's loss as the paper writes it has a gradient for the critics, which is not theirs to follow
            if other is None or (key == "loss_actor" and name.startswith("qvalue")):
                assert one is None or not one.any(), (key, name)
            else:
                torch.testing.assert_close(torch.zeros_like(other) if one is None else one, other)
    torch.testing.assert_close(result["alpha"], loss.log_alpha.exp().detach())


def test_no_temporary_holds_every_row_against_every_other():
    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for value in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(value, torch.Tensor):
                    self.numbers = max(self.numbers, value.numel())
            return out

    size = 256
    loss, batch = make_loss(), make_batch(size)
    with Largest() as seen:
        sum(value for key, value in loss(batch).items() if key.startswith("loss")).backward()
    # the widest is a critic's input: 5 numbers of 3 * num_random actions of each row
    assert seen.numbers <= size * 3 * COUNT * 5


def test_the_soft_maximum_is_the_integral_that_it_estimates():
    temperature = 0.5
    grid = torch.linspace(-2, 2, 4001, dtype=torch.float64)
    value = -((grid - 0.4) ** 2)
    exact = temperature * torch.trapezoid((value / temperature).exp(), grid).log()
    density = torch.full_like(grid, -math.log(4))
    got = soft_maximum(value, density, temperature) - temperature * math.log(len(grid))
    torch.testing.assert_close(got, exact, atol=1e-3, rtol=0)
    torch.manual_seed(0)
    drawn = torch.randn(20000, dtype=torch.float64) * 0.8
    normal = Normal(torch.zeros((), dtype=torch.float64), 0.8).log_prob(drawn)
    both = torch.cat([-((drawn - 0.4) ** 2), value]), torch.cat([normal, density])
    got = soft_maximum(*both, temperature) - temperature * math.log(len(both[0]))
    torch.testing.assert_close(got, exact, atol=0.02, rtol=0)


def test_shapes_are_never_broadcast_in_the_formula():
    with pytest.raises(SpecError, match="one shape"):
        soft_maximum(torch.zeros(4, 3), torch.zeros(3))
    with pytest.raises(SpecError, match="one shape"):
        conservative_gap(torch.zeros(4), torch.zeros(4, 1))


@pytest.mark.parametrize(("threshold", "rises"), [(-1e3, True), (1e3, False)])
def test_the_price_rises_while_the_gap_is_above_the_threshold(threshold, rises):
    loss = make_loss(with_lagrange=True, lagrange_thresh=threshold)
    loss(make_batch())["loss_alpha_prime"].backward()
    assert bool(loss.log_alpha_prime.grad < 0) is rises  # a step goes against the gradient


def test_uniform_actions_fill_the_box_of_the_spec():
    spec = Bounded(torch.tensor([-1.0, 4.0]), torch.tensor([0.0, 8.0]))
    loss, batch = make_loss(action_spec=spec, num_random=500), make_batch()
    actions, density = loss._uniform_actions(batch)
    assert actions.shape == (500, 8, 2)
    assert (actions >= spec.low).all()
    assert (actions <= spec.high).all()
    torch.testing.assert_close(actions.mean((0, 1)), torch.tensor([-0.5, 6.0]), atol=0.1, rtol=0)
    torch.testing.assert_close(density, torch.full((500, 8), -math.log(4.0)))


def test_specs_without_a_finite_box_are_refused():
    box = Bounded(-1.0, 2.0, (2,))
    assert [bound.tolist() for bound in action_box(box, "action", "x")] == [-1.0, 2.0]
    assert [bound.tolist() for bound in action_box(Composite(action=box), "action", "x")] == [-1.0, 2.0]
    apart = Bounded(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0])).expand(3, 2)
    many = Composite(action=apart, shape=(3,))
    assert [bound.tolist() for bound in action_box(many, "action", "x")] == [[0.0, -1.0], [1.0, 1.0]]
    for wrong in (Unbounded((2,)), Categorical(4), Composite(other=box)):
        with pytest.raises(SpecError, match="Bounded"):
            make_loss(action_spec=wrong)
    for wrong in (Bounded(-math.inf, 1.0, (2,)), Bounded(1.0, 1.0, (2,))):
        with pytest.raises(SpecError, match="finite"):
            make_loss(action_spec=wrong)
    with pytest.raises(SpecError, match="action_spec"):
        make_loss(action_spec=Bounded(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])))(make_batch())


def test_a_batch_of_sequences_gives_the_losses_of_its_rows():
    class FlatGrid(GridCQLLoss):
        def _uniform_actions(self, batch):
            rows = batch.reshape(-1)
            actions, density = super()._uniform_actions(rows)
            return actions.view(-1, *batch["action"].shape), density.view(-1, *batch.batch_size)

    flat = make_batch()
    expected, nested = make_loss(FlatGrid)(flat), make_loss(FlatGrid)(flat.view(4, 2))
    for key in expected.keys():  # noqa: SIM118 (no dict)
        torch.testing.assert_close(nested[key], expected[key])


def test_copies_of_one_critic_learn_from_all_their_actions():
    torch.manual_seed(0)
    loss = CQLLoss(GridActor(), critic(), num_qvalue_nets=4, num_random=2)
    result = loss(make_batch())
    assert all(value.isfinite().all() for value in result.values())
    updater = SoftUpdate(loss, tau=0.5)
    with torch.no_grad():
        for weight in loss.qvalue_network.parameters():
            weight.add_(1.0)
    before = [target.clone() for _, target in updater.tensors()]
    updater.step()
    for old, (source, target) in zip(before, updater.tensors(), strict=True):
        torch.testing.assert_close(target, (old + source) / 2)


def test_a_fixed_alpha_has_no_loss_and_bounds_hold():
    loss = make_loss(fixed_alpha=True)
    assert loss(make_batch())["loss_alpha"] == 0
    assert "log_alpha" not in dict(loss.named_parameters())
    loss = make_loss(max_alpha=0.5)
    with torch.no_grad():
        loss.log_alpha.fill_(3.0)
    torch.testing.assert_close(loss(make_batch())["alpha"], torch.tensor(0.5))


@pytest.mark.parametrize(
    ("key", "shape"), [(("next", "reward"), (8,)), (("next", "terminated"), (8,)), ("gamma", (8,)), ("action", (8, 1))]
)
def test_entries_that_would_broadcast_are_refused(key, shape):
    batch = make_batch()
    batch[key] = torch.zeros(shape, dtype=torch.bool) if key[-1] == "terminated" else torch.rand(shape)
    with pytest.raises(SpecError, match=key if isinstance(key, str) else key[-1]):
        make_loss()(batch)


def test_options_are_checked_at_construction():
    wrong = [
        {"temperature": 0.0},
        {"min_q_weight": -1.0},
        {"num_random": 0},
        {"loss_function": "l3"},
        {"alpha_init": 0},
    ]
    for options in wrong:
        with pytest.raises(SpecError):
            make_loss(**options)
    with pytest.raises(SpecError, match="get_dist"):
        CQLLoss(critic(), critic())


def test_cql_is_registered():
    assert registry.losses.get("cql") is CQLLoss
