"""Additive Gaussian, Ornstein-Uhlenbeck and state-dependent exploration."""

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import ExplorationType, carried_state, set_exploration_type
from rl_core.errors import PolicyError
from rl_core.specs import Bounded, Categorical, Composite, Unbounded
from rl_core.testing import CountingEnv
from rl_modules import (
    AdditiveGaussianModule,
    AdditiveGaussianWrapper,
    LazygSDEModule,
    OrnsteinUhlenbeckProcessModule,
    OrnsteinUhlenbeckProcessWrapper,
    SafeModule,
    SafeSequential,
    gSDEModule,
)

RANDOM = set_exploration_type(ExplorationType.RANDOM)


# ---------------------------------------------------------------- annealing, for both kinds
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (lambda: AdditiveGaussianModule(Unbounded((1,)), 1.0, 0.2, 100), "sigma"),
        (lambda: OrnsteinUhlenbeckProcessModule(Unbounded((1,)), 1.0, 0.2, 100), "eps"),
    ],
    ids=["gaussian", "ornstein_uhlenbeck"],
)
def test_annealing_counts_frames_stops_at_its_end_and_is_saved(module, name):
    annealed = module()
    annealed.step(25)
    assert getattr(annealed, name).item() == pytest.approx(0.8)
    for _ in range(25):
        annealed.step()
    assert getattr(annealed, name).item() == pytest.approx(0.6)
    restored = module()
    restored.load_state_dict(annealed.state_dict())
    assert getattr(restored, name).item() == pytest.approx(0.6)
    restored.step(10_000)
    assert getattr(restored, name).item() == pytest.approx(0.2)


# ---------------------------------------------------------------- Gaussian noise
def test_gaussian_noise_has_the_mean_and_the_width_it_was_given():
    torch.manual_seed(0)
    module = AdditiveGaussianModule(Unbounded((1,)), sigma_init=0.5, sigma_end=0.1, mean=1.0, std=2.0)
    with RANDOM:
        action = module(TensorDict({"action": torch.full((20_000, 1), 3.0)}, [20_000]))["action"]
    assert action.mean().item() == pytest.approx(3.0 + 0.5 * 1.0, abs=0.03)  # four standard errors
    assert action.std().item() == pytest.approx(0.5 * 2.0, abs=0.03)


@pytest.mark.parametrize("how", [ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN])
def test_actions_pass_through_where_nothing_is_explored(how):
    module = AdditiveGaussianModule(Bounded(-1.0, 1.0, (2,)))
    td = TensorDict({"action": torch.zeros(5, 2)}, [5])
    with set_exploration_type(how):
        assert not module(td)["action"].any()
    assert module(td)["action"].any()


def test_noisy_actions_stay_within_the_spec_whatever_its_batch():
    for spec in (Bounded(-1.0, 1.0, (2,)), CountingEnv(batch_size=[3]).full_action_spec, Bounded(-1.0, 1.0, (1,))):
        module = AdditiveGaussianModule(spec, sigma_init=9.0)
        size = module.spec.shape
        for lead in ((3,), (3, 4), (2, 3, 4)):
            with RANDOM:
                action = module(TensorDict({"action": torch.zeros(*lead, *size)}, lead))["action"]
            assert action.shape == (*lead, *size) and (action.abs() <= 1).all()


def test_other_keys_and_specs_that_have_no_noise():
    spec = Composite({("agent", "torque"): Bounded(-1.0, 1.0, (1,))})
    module = AdditiveGaussianModule(spec, action_key=("agent", "torque"))
    assert module.in_keys == [("agent", "torque")] == module.out_keys
    with pytest.raises(ValueError, match="Categorical"):
        AdditiveGaussianModule(Categorical(3))
    with pytest.raises(ValueError, match="sigma_end"):
        AdditiveGaussianModule(Unbounded((1,)), sigma_init=0.1, sigma_end=0.2)


# ---------------------------------------------------------------- Ornstein-Uhlenbeck
def walk(module, flags):
    """The noise of each step, for an action of zero, of rows with the given first-step flags ``[B, T]``."""
    rows = flags.shape[0]
    td = TensorDict(
        {
            "action": torch.zeros(rows, 1),
            "_ou_prev_noise": torch.full((rows, 1), 99.0),  # must not be read: the first step is flagged
            "_ou_steps": torch.full((rows, 1), 99),
        },
        [rows],
    )
    noise = []
    for t in range(flags.shape[1]):
        td = module(td.set("is_init", flags[:, t].unsqueeze(-1)).set("action", torch.zeros(rows, 1)))
        noise.append(td["action"].clone())
        nxt = td.pop("next")
        td.update(nxt)
    return torch.cat(noise, 1)


def test_the_process_follows_its_equation_and_starts_anew_at_first_steps():
    theta, mu, sigma, low, dt, x0, eps = 0.5, 1.0, 0.3, 0.1, 0.04, 2.0, 0.7
    module = OrnsteinUhlenbeckProcessModule(
        Unbounded((1,)), eps, eps, theta=theta, mu=mu, sigma=sigma, sigma_min=low, n_steps_annealing=4, dt=dt, x0=x0
    )
    flags = torch.tensor([[1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0, 0]], dtype=torch.bool)
    torch.manual_seed(5)
    with RANDOM:
        found = walk(module, flags)
    torch.manual_seed(5)
    noise = torch.zeros(2)
    steps = torch.zeros(2)
    wanted = []
    for t in range(7):
        noise = torch.where(flags[:, t], torch.tensor(x0), noise)
        steps = torch.where(flags[:, t], torch.tensor(0.0), steps)
        strength = (sigma - (sigma - low) * steps / 4).clamp_min(low)
        noise = noise + theta * (mu - noise) * dt + strength * math.sqrt(dt) * torch.randn(2, 1).squeeze(-1)
        steps = steps + 1
        wanted.append(eps * noise)
    torch.testing.assert_close(found, torch.stack(wanted, 1))


def test_the_process_stands_still_where_nothing_is_explored():
    module = OrnsteinUhlenbeckProcessModule(Unbounded((1,)))
    td = TensorDict(
        {
            "action": torch.ones(2, 1),
            "_ou_prev_noise": torch.full((2, 1), 3.0),
            "_ou_steps": torch.full((2, 1), 4),
            "is_init": torch.zeros(2, 1, dtype=torch.bool),
        },
        [2],
    )
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        td = module(td)
    assert td["action"].tolist() == [[1.0], [1.0]]
    assert td["next", "_ou_prev_noise"].tolist() == [[3.0], [3.0]] and td["next", "_ou_steps"].tolist() == [[4], [4]]


def test_the_process_is_declared_as_state_and_projected():
    module = OrnsteinUhlenbeckProcessModule(Bounded(-0.1, 0.1, (2,)), x0=5.0)
    state = carried_state(SafeSequential(SafeModule(nn.Linear(3, 2), ["observation"], ["action"]), module))
    assert {key: tuple(spec.shape) for key, spec in state.specs.items()} == {"_ou_prev_noise": (2,), "_ou_steps": (1,)}
    assert state.init_keys == ["is_init"]
    flag = torch.ones(3, 1, dtype=torch.bool)
    with RANDOM:
        action, *_ = module.forward_tensors(torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 1).long(), flag)
    assert (action == torch.tensor(0.1)).all()


# ---------------------------------------------------------------- state-dependent exploration
@pytest.mark.parametrize("make", [lambda: gSDEModule(2, 3), lambda: gSDEModule(2, 3, learn_sigma=False)])
def test_state_dependent_noise_is_linear_in_the_state_and_its_scale_exact(make):
    module = make()
    with torch.no_grad():
        module.raw_sigma.copy_(torch.randn(2, 3))
    mu, state, eps = torch.randn(4, 2), torch.randn(4, 3), torch.randn(4, 2, 3)
    with RANDOM:
        loc, scale, action, same = module(mu, state, eps)
    wanted = torch.stack([mu[b] + (module.sigma * eps[b]) @ state[b] for b in range(4)])
    torch.testing.assert_close(action, wanted)
    variance = torch.stack([(module.sigma.square() * state[b].square()).sum(-1) for b in range(4)])
    torch.testing.assert_close(scale, variance.sqrt().clamp(0.01, 10.0))
    assert loc is mu and same is eps


def test_actions_of_random_epsilons_have_the_scale_that_is_reported():
    torch.manual_seed(0)
    module = gSDEModule(1, 2, sigma_init=0.5)
    state = torch.tensor([0.6, -0.8]).expand(20_000, 2)
    with RANDOM:
        _, scale, action, _ = module(torch.zeros(20_000, 1), state, torch.randn(20_000, 1, 2))
    assert scale[0].item() == pytest.approx(0.5) and action.std().item() == pytest.approx(0.5, abs=0.015)


def test_no_state_dependent_noise_where_nothing_is_explored():
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        mu, _, action, _ = gSDEModule(2, 3)(torch.ones(4, 2), torch.ones(4, 3), torch.ones(4, 2, 3))
    assert torch.equal(mu, action)


def test_lazy_sizes_follow_from_the_inputs():
    torch.manual_seed(0)
    module = SafeModule(
        LazygSDEModule(sigma_init=0.3), ["loc", "features", "_eps_gSDE"], ["loc", "scale", "action", "_eps_gSDE"]
    )
    td = TensorDict({"loc": torch.zeros(4, 2), "features": torch.ones(4, 3), "_eps_gSDE": torch.zeros(4, 2, 3)}, [4])
    assert module(td)["scale"].shape == (4, 2)
    torch.testing.assert_close(module.module.sigma, torch.full((2, 3), 0.3))


def test_an_epsilon_of_another_shape_names_the_primer():
    with pytest.raises(PolicyError, match="TensorDictPrimer"):
        gSDEModule(2, 3)(torch.zeros(4, 2), torch.zeros(4, 3), torch.zeros(2, 3))


@pytest.mark.parametrize("wrap", [AdditiveGaussianWrapper, OrnsteinUhlenbeckProcessWrapper])
def test_older_names_append_the_module(wrap):
    policy = SafeModule(nn.Linear(3, 2), ["observation"], ["action"], spec=Bounded(-1.0, 1.0, (2,)))
    assert len(wrap(policy)) == 2
    with pytest.raises(PolicyError, match=r"spec=env.action_spec"):
        wrap(SafeModule(nn.Linear(3, 2), ["observation"], ["action"]))
