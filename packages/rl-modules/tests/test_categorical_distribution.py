"""Categorical and OneHotCategorical: numbers by hand, and against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import kl_divergence

from rl_modules import Categorical, OneHotCategorical

LOGITS = torch.tensor([[0.0, math.log(3.0)], [2.0, 2.0]])  # probabilities (1/4, 3/4) and (1/2, 1/2)


def test_log_prob_of_known_probabilities():
    dist = Categorical(logits=LOGITS)
    expected = torch.tensor([math.log(0.75), math.log(0.5)])
    torch.testing.assert_close(dist.log_prob(torch.tensor([1, 0])), expected)


def test_probs_are_normalised():
    dist = Categorical(probs=torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(dist.probs, torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(dist.log_prob(torch.tensor(0)), torch.tensor(math.log(0.25)))


def test_entropy_of_a_fair_coin_is_log_two():
    torch.testing.assert_close(Categorical(logits=LOGITS).entropy()[1], torch.tensor(math.log(2.0)))


def test_frequencies_of_draws_follow_the_probabilities():
    torch.manual_seed(0)
    draws = Categorical(logits=torch.tensor([[0.0, 1.0, -1.0, float("-inf")]])).sample((100_000,))
    assert draws.shape == (100_000, 1)
    assert draws.dtype == torch.int64
    found = torch.bincount(draws.flatten(), minlength=4) / 100_000
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, -1.0, float("-inf")]).softmax(-1), atol=0.01, rtol=0)


def test_joint_sample_has_the_log_prob_of_the_sample():
    dist = Categorical(logits=torch.randn(5, 7))
    for shape in ((), (3,)):
        value, log_prob = dist.sample_and_log_prob(shape)
        assert value.shape == (*shape, 5)
        torch.testing.assert_close(log_prob, dist.log_prob(value))


def test_draws_follow_the_global_seed_and_a_generator():
    dist = Categorical(logits=torch.randn(64, 9))
    torch.manual_seed(3)
    first = dist.sample()
    torch.manual_seed(3)
    assert torch.equal(first, dist.sample())
    draws = [dist.draw(generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*draws)


def test_half_precision_logits_can_draw_rare_categories():
    torch.manual_seed(0)
    dist = Categorical(logits=torch.zeros(20_000, 4, dtype=torch.bfloat16))
    found = torch.bincount(dist.sample(), minlength=4) / 20_000
    torch.testing.assert_close(found, torch.full((4,), 0.25), atol=0.02, rtol=0)


def test_a_value_of_another_shape_is_not_broadcast():
    dist = Categorical(logits=torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"shape \[5, 1\].*end with batch shape \[5\]"):
        dist.log_prob(torch.zeros(5, 1, dtype=torch.int64))


def test_both_or_none_of_probs_and_logits_raise():
    with pytest.raises(ValueError, match="exactly one"):
        Categorical()
    with pytest.raises(ValueError, match="exactly one"):
        Categorical(probs=torch.ones(2), logits=torch.ones(2))


def test_gradients_equal_torchs():
    grads = []
    for kind in (Categorical, TorchCategorical):
        logits = LOGITS.clone().requires_grad_()
        dist = kind(logits=logits)
        (dist.log_prob(torch.tensor([0, 1])).sum() + dist.entropy().sum()).backward()
        grads.append(logits.grad)
    torch.testing.assert_close(*grads)


def test_kl_divergence_is_torchs():
    p, q = torch.randn(4, 3), torch.randn(4, 3)
    expected = kl_divergence(TorchCategorical(logits=p), TorchCategorical(logits=q))
    torch.testing.assert_close(kl_divergence(Categorical(logits=p), Categorical(logits=q)), expected)
    one_hot = kl_divergence(OneHotCategorical(logits=p), OneHotCategorical(logits=q))
    torch.testing.assert_close(one_hot, expected)


def test_expand_keeps_log_probs():
    dist = Categorical(logits=LOGITS).expand((3, 2))
    assert dist.batch_shape == (3, 2)
    torch.testing.assert_close(dist.log_prob(torch.ones(3, 2))[2, 0], torch.tensor(math.log(0.75)))


def test_one_hot_mode_has_one_one_also_among_equals():
    assert OneHotCategorical(logits=torch.zeros(2, 3)).mode.tolist() == [[1, 0, 0], [1, 0, 0]]


def test_one_hot_samples_are_integer_rows_scored_as_their_index():
    dist = OneHotCategorical(logits=LOGITS)
    value, log_prob = dist.sample_and_log_prob()
    assert value.dtype == torch.int64
    assert value.sum(-1).tolist() == [1, 1]
    torch.testing.assert_close(log_prob, dist.log_prob(value))
    torch.testing.assert_close(dist.log_prob(value.bool()), dist.log_prob(value.float()))
    torch.testing.assert_close(dist.log_prob(torch.tensor([[0, 1], [1, 0]])), torch.tensor([0.75, 0.5]).log())


def test_one_hot_rsample_passes_the_gradient_of_the_probabilities():
    logits = torch.tensor([0.5, -0.5], requires_grad=True)
    sample = OneHotCategorical(logits=logits).rsample()
    assert sorted(sample.detach().round().tolist()) == [0.0, 1.0]
    (sample * torch.tensor([1.0, 0.0])).sum().backward()
    p = logits.detach().softmax(-1)
    torch.testing.assert_close(logits.grad, torch.stack([p[0] * p[1], -p[0] * p[1]]))
