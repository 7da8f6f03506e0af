"""TanhNormal against the change of variables in float64, and at its bounds (pain P35)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from rl_modules import TanhNormal

TENSOR_BOUNDS = (torch.tensor([-2.0, 0.0]), torch.tensor([3.0, 10.0]))


def reference(u, loc, scale, low, high):
    """log p of T(u), element by element, from the textbook formula in float64."""
    u, loc, scale = u.double(), loc.double(), scale.double()
    half = (torch.as_tensor(high).double() - torch.as_tensor(low).double()) / 2
    slope = half * (1 - u.tanh() ** 2)
    return (Normal(loc, scale).log_prob(u) - slope.log()).sum(-1)


@pytest.mark.parametrize("low, high", [(-1.0, 1.0), (-2, 2), (0, 3), (-0.1, 0.3), TENSOR_BOUNDS])
def test_log_prob_of_stored_actions_equals_the_change_of_variables(low, high):
    loc, scale = torch.randn(6, 2), torch.rand(6, 2) + 0.2
    u = torch.randn(6, 2)
    low64, high64 = torch.as_tensor(low).double(), torch.as_tensor(high).double()
    action = ((low64 + high64) / 2 + (high64 - low64) / 2 * u.double().tanh()).float()
    dist = TanhNormal(loc, scale, low=low, high=high)
    expected = reference(u, loc, scale, low, high).float()
    torch.testing.assert_close(dist.log_prob(action), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("low, high", [(-1, 1), (-2, 2), TENSOR_BOUNDS])
def test_joint_log_prob_comes_from_the_value_before_the_squash(low, high):
    loc, scale = torch.full((1000, 2), 4.0), torch.full((1000, 2), 1.0)  # tanh(4) = 0.9993: atanh would be coarse
    dist = TanhNormal(loc, scale, low=low, high=high)
    torch.manual_seed(0)
    noise = torch.randn(1000, 2)
    torch.manual_seed(0)
    action, log_prob = dist.rsample_and_log_prob()
    expected = reference(loc + noise, loc, scale, low, high)
    torch.testing.assert_close(log_prob.double(), expected, atol=2e-5, rtol=1e-5)
    torch.manual_seed(0)
    other_action, other = dist.sample_and_log_prob()
    torch.testing.assert_close(other_action, action)
    torch.testing.assert_close(other, log_prob, atol=1e-4, rtol=1e-4)


def test_a_known_value_by_hand():
    dist = TanhNormal(torch.zeros(1), torch.ones(1), low=-2, high=2)
    # at 0 the slope of T is 2: log N(0) - log 2
    expected = -0.5 * math.log(2 * math.pi) - math.log(2)
    assert dist.log_prob(torch.zeros(1)).item() == pytest.approx(expected, abs=1e-6)


def test_int_float_and_tensor_bounds_agree():
    loc, scale, action = torch.randn(3, 1), torch.rand(3, 1) + 0.1, torch.rand(3, 1)
    bounds = [(-2, 2), (-2.0, 2.0), (torch.tensor([-2.0]), torch.tensor([2.0])), (torch.tensor(-2), torch.tensor(2))]
    log_probs = [TanhNormal(loc, scale, low=low, high=high).log_prob(action) for low, high in bounds]
    for log_prob in log_probs[1:]:
        torch.testing.assert_close(log_prob, log_probs[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("low, high", [(-1.0, 1.0), (-2, 2), (-0.1, 0.3)])
def test_log_prob_and_its_gradient_are_finite_at_the_bounds(dtype, low, high):
    loc = torch.zeros(2, 1, dtype=dtype, requires_grad=True)
    scale = torch.ones(2, 1, dtype=dtype, requires_grad=True)
    action = torch.tensor([[low], [high]], dtype=dtype)
    log_prob = TanhNormal(loc, scale, low=low, high=high).log_prob(action)
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert loc.grad.isfinite().all()
    assert scale.grad.isfinite().all()


def test_a_bound_counts_as_the_nearest_value_inside():
    dist = TanhNormal(torch.zeros(1), torch.ones(1))
    u = torch.tensor([math.atanh(1 - 2.0**-24)], dtype=torch.float64)
    expected = reference(u, torch.zeros(1), torch.ones(1), -1, 1)
    assert dist.log_prob(torch.ones(1)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_saturated_draws_keep_a_ratio_of_one():
    torch.manual_seed(0)
    dist = TanhNormal(torch.full((500, 1), 12.0), torch.ones(500, 1), low=-2, high=2)
    action, stored = dist.sample_and_log_prob()
    torch.testing.assert_close(dist.log_prob(action), stored)


@pytest.mark.parametrize("bad", [2.5, -2.5, float("nan"), float("inf")])
def test_an_action_outside_its_bounds_raises(bad):
    dist = TanhNormal(torch.zeros(3, 1), torch.ones(3, 1), low=-2, high=2)
    with pytest.raises(ValueError, match=r"at index \[1, 0\].*outside its bounds"):
        dist.log_prob(torch.tensor([[0.0], [bad], [0.0]]))


def test_samples_stay_inside_the_bounds_although_rounding_would_carry_them_out():
    low, high = -0.1, 0.3
    dist = TanhNormal(torch.full((1, 1), 50.0), torch.ones(1, 1), low=low, high=high)
    assert dist.sample().item() <= torch.tensor(high).item()
    assert dist.mode.item() <= torch.tensor(high).item()


def test_mode_median_and_deterministic_sample_are_the_image_of_loc():
    dist = TanhNormal(torch.tensor([0.5]), torch.tensor([2.0]), low=0, high=4)
    expected = torch.tensor([2 + 2 * math.tanh(0.5)])
    for value in (dist.mode, dist.median, dist.deterministic_sample):
        torch.testing.assert_close(value, expected)


def test_entropy_and_mean_are_declared_absent():
    dist = TanhNormal(torch.zeros(1), torch.ones(1))
    assert not dist.has_entropy
    with pytest.raises(NotImplementedError):
        dist.entropy()
    with pytest.raises(NotImplementedError):
        _ = dist.mean


def test_tanh_loc_keeps_the_mean_within_upscale():
    dist = TanhNormal(torch.tensor([100.0]), torch.ones(1), upscale=2.0, tanh_loc=True)
    torch.testing.assert_close(dist.loc, torch.tensor([2.0]))


def test_density_integrates_to_one():
    dist = TanhNormal(torch.tensor([0.3]), torch.tensor([0.7]), low=-2, high=5)
    grid = torch.linspace(-2, 5, 20_001)[1:-1, None]
    assert dist.log_prob(grid).exp().sum().item() * 7 / 20_000 == pytest.approx(1.0, abs=1e-3)


def test_event_dims_choose_the_log_prob_shape():
    loc, scale = torch.zeros(4, 3, 2), torch.ones(4, 3, 2)
    shapes = [TanhNormal(loc, scale, event_dims=dims).sample_and_log_prob()[1].shape for dims in (0, 1, 2)]
    assert shapes == [(4, 3, 2), (4, 3), (4,)]
    assert TanhNormal(torch.tensor(0.0), torch.tensor(1.0)).sample_and_log_prob()[1].shape == ()


def test_bounds_per_row_of_the_batch():
    low, high = torch.tensor([[-1.0], [-3.0]]), torch.tensor([[1.0], [3.0]])
    dist = TanhNormal(torch.zeros(2, 1), torch.ones(2, 1), low=low, high=high)
    rows = [
        TanhNormal(torch.zeros(1), torch.ones(1), low=low[i], high=high[i]).log_prob(torch.zeros(1)) for i in (0, 1)
    ]
    torch.testing.assert_close(dist.log_prob(torch.zeros(2, 1)), torch.stack(rows))


def test_rsample_has_the_gradient_of_the_squash():
    loc = torch.tensor([0.3], requires_grad=True)
    action = TanhNormal(loc, torch.tensor([1e-8]), low=-2, high=2).rsample()
    action.backward()
    torch.testing.assert_close(loc.grad, torch.tensor([2 * (1 - math.tanh(0.3) ** 2)]))


def test_sample_and_log_prob_scores_with_gradient_and_samples_without():
    loc = torch.zeros(4, 1, requires_grad=True)
    action, log_prob = TanhNormal(loc, torch.ones(4, 1)).sample_and_log_prob()
    assert not action.requires_grad
    (grad,) = torch.autograd.grad(log_prob.sum(), loc)
    torch.testing.assert_close(grad, action.atanh(), atol=1e-4, rtol=1e-3)  # d/dloc = (u - loc) / scale^2


def test_bounds_prepared_under_inference_mode_serve_training():
    with torch.inference_mode():
        TanhNormal(torch.zeros(1), torch.ones(1), low=-7, high=7).sample_and_log_prob()
    loc = torch.zeros(1, requires_grad=True)
    TanhNormal(loc, torch.ones(1), low=-7, high=7).rsample_and_log_prob()[1].backward()
    assert loc.grad is not None


def test_kl_divergence_is_that_of_the_normals():
    p, q = (torch.tensor([0.5]), torch.tensor([1.0])), (torch.tensor([-0.5]), torch.tensor([2.0]))
    found = kl_divergence(TanhNormal(*p, low=-2, high=2), TanhNormal(*q, low=-2, high=2))
    torch.testing.assert_close(found, kl_divergence(Normal(*p), Normal(*q)).sum(-1))


@pytest.mark.parametrize("low, high", [(1, 1), (2, -2), (-1.0, float("inf"))])
def test_bad_bounds_raise(low, high):
    with pytest.raises(ValueError, match="low < high"):
        TanhNormal(torch.zeros(1), torch.ones(1), low=low, high=high)


def test_a_value_of_another_shape_is_not_broadcast():
    dist = TanhNormal(torch.zeros(5, 1), torch.ones(5, 1))
    with pytest.raises(ValueError, match=r"shape \[5\]"):
        dist.log_prob(torch.zeros(5))


def test_bound_factories_check_once_and_pickle():
    import pickle

    factory = pickle.loads(pickle.dumps(TanhNormal.bind(low=torch.tensor([-2.0]), high=torch.tensor([2.0]))))
    torch.testing.assert_close(factory(loc=torch.zeros(1), scale=torch.ones(1)).high, torch.tensor([2.0]))
    with pytest.raises(ValueError, match="low < high"):
        TanhNormal.bind(low=3, high=-3)
