"""TruncatedNormal against its definition: numerical integrals in float64, and gradients by finite differences."""

import pytest
import torch

from rl_modules import TruncatedNormal

CASES = {
    "inside": (0.2, 0.7, -1.0, 1.0),
    "mean outside": (3.0, 0.5, -1.0, 1.0),
    "mean far outside": (-9.0, 0.5, 0.0, 2.0),
    "wide": (0.0, 50.0, -1.0, 2.0),
}


def grid(low, high, count=200_001):
    x = torch.linspace(low, high, count, dtype=torch.float64)
    return x, (high - low) / (count - 1)


def density(loc, scale, low, high):
    """By the trapezoid rule over the cut normal, without any distribution function."""
    x, step = grid(low, high)
    score = (x - loc) / scale
    raw = (-0.5 * (score.square() - score.square().min())).exp()  # the largest term is 1
    return x, raw / torch.trapezoid(raw, dx=step), step


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_density_moments_and_entropy_are_those_of_the_cut_normal(case):
    loc, scale, low, high = case
    x, p, step = density(*case)
    dist = TruncatedNormal(torch.tensor([loc]).double(), torch.tensor([scale]).double(), low=low, high=high)
    at = torch.arange(0, len(x), 20_000)
    torch.testing.assert_close(dist.log_prob(x[at].unsqueeze(-1)), p[at].log(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(dist.mean.squeeze(), torch.trapezoid(x * p, dx=step), rtol=1e-6, atol=1e-6)
    entropy = -torch.trapezoid(torch.special.xlogy(p, p), dx=step)
    torch.testing.assert_close(dist.entropy(), entropy, rtol=1e-5, atol=1e-5)
    below = torch.cumulative_trapezoid(p, dx=step)
    assert abs(x[1:][below >= 0.5][0] - dist.median.item()) < 1e-4
    assert dist.mode.item() == pytest.approx(min(max(loc, low), high))
    assert "loc" in repr(dist)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_samples_are_legal_and_distributed_as_the_density_says(case):
    loc, scale, low, high = case
    torch.manual_seed(0)
    dist = TruncatedNormal(torch.tensor([loc]), torch.tensor([scale]), low=low, high=high)
    drawn = dist.sample((20_000,)).flatten()
    assert drawn.dtype == torch.float32 and ((drawn >= low) & (drawn <= high)).all()
    x, p, step = density(*case)
    share = torch.cumulative_trapezoid(p, dx=step)
    for quantile in (0.1, 0.5, 0.9):
        threshold = x[1:][share >= quantile][0]
        assert abs((drawn <= threshold).double().mean().item() - quantile) < 0.015  # four standard errors


def test_samples_far_in_the_tail_are_numbers():
    dist = TruncatedNormal(torch.tensor([-60.0]).requires_grad_(), torch.tensor([1.0]), low=0, high=1)
    value, log_prob = dist.rsample_and_log_prob((100,))
    assert ((value >= 0) & (value <= 1)).all() and log_prob.isfinite().all()
    (gradient,) = torch.autograd.grad(value.sum() + log_prob.sum(), dist.loc)
    assert gradient.isfinite().all()


def test_gradients_of_a_sample_are_those_of_the_inverse_distribution_function():
    parameters = torch.tensor([0.3, 0.8], dtype=torch.float64, requires_grad=True)

    def sample(parameters):
        torch.manual_seed(3)
        return TruncatedNormal(parameters[:1], parameters[1:], low=-1, high=1.5).rsample((4,)).squeeze(-1)

    found = torch.autograd.functional.jacobian(sample, parameters)
    for index in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[index] = 1e-5
        numeric = (sample(parameters.detach() + step) - sample(parameters.detach() - step)) / 2e-5
        torch.testing.assert_close(found[:, index], numeric, rtol=1e-6, atol=1e-8)


def test_sampling_and_scoring_at_once_agrees_with_both():
    loc, scale = torch.randn(5, 3), torch.rand(5, 3) + 0.1
    dist = TruncatedNormal(loc, scale, low=torch.tensor([-1.0, 0.0, 2.0]), high=torch.tensor([1.0, 0.5, 9.0]))
    value, log_prob = dist.sample_and_log_prob((7,))
    assert value.shape == (7, 5, 3) and log_prob.shape == (7, 5)
    torch.testing.assert_close(dist.log_prob(value), log_prob)
    a, b = (dist.draw((2,), torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(a, b)


def test_bounds_may_be_ints_and_are_prepared_once():
    factory = TruncatedNormal.bind(low=0, high=4)
    assert factory(loc=torch.zeros(2), scale=torch.ones(2)).mode.tolist() == [0.0, 0.0]
    assert factory(loc=torch.zeros(3, 2), scale=1.0, tanh_loc=True).batch_shape == (3,)
    with pytest.raises(ValueError, match="low < high"):
        TruncatedNormal(torch.zeros(1), torch.ones(1), low=1, high=1)


def test_an_action_outside_is_an_error_and_no_broadcast_is_silent():
    dist = TruncatedNormal(torch.zeros(2, 1), torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"1\.5.*\[1, 0\]"):
        dist.log_prob(torch.tensor([[0.0], [1.5]]))
    with pytest.raises(ValueError, match="never broadcast"):
        dist.log_prob(torch.zeros(1))


def test_expansion_keeps_bounds():
    dist = TruncatedNormal(torch.zeros(1), torch.ones(1), low=0, high=2).expand((4,))
    assert dist.batch_shape == (4,) and dist.mode.shape == (4, 1)
