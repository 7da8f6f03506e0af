"""Divergences of latents, uniform mixtures and weights of imagined steps, against the definitions in float64."""

import math

import pytest
import torch

from rl_core.errors import LossError, SpecError
from rl_objectives import PercentileValueNorm
from rl_objectives.functional.dreamer import (
    categorical_kl,
    gaussian_kl,
    imagination_weights,
    mixed_log_probs,
    separate_kl,
)


def test_the_divergence_of_normals_is_their_expected_log_ratio():
    # KL(N(1, 2) || N(3, 4)) = ln 2 + (4 + 4) / 32 - 1/2
    numbers = [torch.tensor([value], dtype=torch.float64) for value in (1.0, 2.0, 3.0, 4.0)]
    assert gaussian_kl(*numbers).item() == pytest.approx(math.log(2) + 0.25 - 0.5)
    with pytest.raises(LossError, match="one shape"):
        gaussian_kl(torch.zeros(3, 1), torch.ones(3), torch.zeros(3), torch.ones(3))


def test_the_divergence_of_categoricals_sums_over_variables():
    q = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    p = torch.tensor([[0.25, 0.75], [0.9, 0.1]], dtype=torch.float64)
    expected = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    assert categorical_kl(q.log(), p.log()).item() == pytest.approx(expected)
    assert categorical_kl(q.log() + 7.0, p.log() - 2.0).item() == pytest.approx(expected)
    with pytest.raises(LossError, match="one shape"):
        categorical_kl(q.log(), p.log().unsqueeze(0))


def test_each_of_the_two_divergences_moves_one_side():
    torch.manual_seed(0)
    posterior = torch.randn(4, 3, 5, requires_grad=True)
    prior = torch.randn(4, 3, 5, requires_grad=True)
    dynamics, representation = separate_kl(posterior, prior)
    torch.testing.assert_close(dynamics, representation)
    gradients = torch.autograd.grad(dynamics.sum(), [posterior, prior], allow_unused=True)
    assert gradients[0] is None
    torch.testing.assert_close(gradients[1], prior.softmax(-1) - posterior.softmax(-1))  # of the cross-entropy
    gradients = torch.autograd.grad(representation.sum(), [posterior, prior], allow_unused=True)
    assert gradients[0].abs().sum() > 0 and gradients[1] is None


def test_a_uniform_share_is_a_floor_under_every_probability():
    logits = torch.tensor([60.0, 0.0, -200.0, 1.0])
    mixed = mixed_log_probs(logits, 0.04).exp()
    torch.testing.assert_close(mixed, 0.96 * logits.softmax(-1) + 0.01)
    assert mixed_log_probs(logits, 0.0) is logits
    torch.testing.assert_close(mixed_log_probs(logits, 1.0).exp(), torch.full((4,), 0.25))


def test_a_step_counts_what_the_discounts_before_it_leave():
    discount = torch.tensor([[[0.9], [0.5], [0.0], [1.0]]], requires_grad=True)
    weights = imagination_weights(discount)
    torch.testing.assert_close(weights.flatten(), torch.tensor([1.0, 0.9, 0.45, 0.0]))
    assert not weights.requires_grad
    assert torch.equal(imagination_weights(torch.zeros(2, 1, 1)), torch.ones(2, 1, 1))


def slow_percentile(values, share):
    """Linear between the two neighbours of place ``share * (n - 1)``."""
    ordered, place = sorted(values), share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def test_the_range_follows_the_percentiles_at_its_rate():
    torch.manual_seed(1)
    norm, low, high = PercentileValueNorm(rate=0.25), 0.0, 0.0
    for _ in range(3):
        values = torch.randn(4, 7, 1) * 5
        norm.update(values)
        low += 0.25 * (slow_percentile(values.flatten().tolist(), 0.05) - low)
        high += 0.25 * (slow_percentile(values.flatten().tolist(), 0.95) - high)
    assert norm.low.item() == pytest.approx(low, rel=1e-5) and norm.high.item() == pytest.approx(high, rel=1e-5)
    torch.testing.assert_close(norm.normalize(torch.ones(2, 1)), torch.full((2, 1), 1 / (high - low)))
    torch.testing.assert_close(norm.denormalize(norm.normalize(values)), values)


def test_small_returns_are_not_scaled_up_and_masked_rows_not_seen():
    norm = PercentileValueNorm(rate=1.0)
    values = torch.tensor([[0.0], [0.1], [1000.0]])
    norm.update(values, torch.tensor([True, True, False]))
    assert norm.high.item() == pytest.approx(0.095) and norm.scale().item() == 1.0
    before = norm.state_dict()
    norm.update(values, torch.zeros(3, dtype=torch.bool))
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    centred = PercentileValueNorm(rate=1.0, center=True, min_scale=0.0)
    centred.update(torch.linspace(0, 100, 101).unsqueeze(-1))
    torch.testing.assert_close(centred.normalize(torch.tensor([[50.0]])), torch.tensor([[0.5]]))


def test_wrong_options_and_shapes_of_the_range_are_named():
    with pytest.raises(SpecError, match="quantiles"):
        PercentileValueNorm(quantiles=(0.9, 0.1))
    with pytest.raises(SpecError, match="rate"):
        PercentileValueNorm(rate=0.0)
    with pytest.raises(SpecError, match=r"\[3, 2\]"):
        PercentileValueNorm(shape=1).update(torch.zeros(3, 2))
