"""IndependentNormal, Delta and TanhDelta: numbers by hand, and against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from rl_modules import Delta, IndependentNormal, TanhDelta


def test_independent_normal_equals_torchs():
    loc, scale, value = torch.randn(4, 3), torch.rand(4, 3) + 0.1, torch.randn(4, 3)
    ours, theirs = IndependentNormal(loc, scale), Independent(Normal(loc, scale), 1)
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert (ours.batch_shape, ours.event_shape) == (theirs.batch_shape, theirs.event_shape)


def test_independent_normal_scores_its_samples():
    dist = IndependentNormal(torch.randn(4, 3), torch.rand(4, 3) + 0.1)
    for value, log_prob in (dist.sample_and_log_prob(), dist.rsample_and_log_prob((2,))):
        torch.testing.assert_close(log_prob, dist.log_prob(value))


def test_independent_normal_kl_is_torchs():
    p, q = IndependentNormal(torch.zeros(2), torch.ones(2)), IndependentNormal(torch.ones(2), torch.ones(2))
    torch.testing.assert_close(kl_divergence(p, q), torch.tensor(1.0))


def test_independent_normal_rsample_carries_gradients_and_sample_does_not():
    loc = torch.zeros(2, requires_grad=True)
    dist = IndependentNormal(loc, torch.ones(2))
    assert dist.rsample().requires_grad
    assert not dist.sample().requires_grad


def test_independent_normal_accepts_a_number_for_scale_and_squashes_loc():
    dist = IndependentNormal(torch.tensor([50.0]), 2.0, upscale=5.0, tanh_loc=True)
    torch.testing.assert_close(dist.mode, torch.tensor([5.0]))
    torch.testing.assert_close(dist.scale, torch.tensor([2.0]))


def test_delta_log_prob_is_infinite_at_the_value_and_minus_infinite_elsewhere():
    dist = Delta(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    value = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert dist.log_prob(value).tolist() == [math.inf, -math.inf]
    assert torch.equal(dist.sample((2,))[1], dist.mode)


def test_delta_shapes_that_do_not_fit_raise():
    with pytest.raises(ValueError, match="do not make up"):
        Delta(torch.zeros(2, 3), batch_shape=(2, 3), event_shape=(3,))


def test_tanh_delta_is_the_squashed_value_with_its_gradient():
    param = torch.tensor([0.5], requires_grad=True)
    dist = TanhDelta(param, low=0, high=4)
    torch.testing.assert_close(dist.mode, torch.tensor([2 + 2 * math.tanh(0.5)]))
    dist.rsample().backward()
    torch.testing.assert_close(param.grad, torch.tensor([2 * (1 - math.tanh(0.5) ** 2)]))
    assert not dist.sample().requires_grad
