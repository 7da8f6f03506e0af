"""Symlog, two-hot codes and their cross-entropy, against numbers by hand and dense float64 sums."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import LossError, SpecError
from rl_objectives import symexp, symlog
from rl_objectives.functional.symlog import symexp_bins, two_hot, two_hot_cross_entropy, two_hot_mean

BINS = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0], dtype=torch.float64)


def slow_two_hot(value, bins):
    """Weight w on the bin above and 1 - w on the bin below, w the distance to the lower in units of their gap."""
    code = [0.0] * len(bins)
    if value <= bins[0] or value >= bins[-1]:
        code[0 if value <= bins[0] else -1] = 1.0
        return code
    upper = next(i for i, edge in enumerate(bins) if edge > value)
    share = (value - bins[upper - 1]) / (bins[upper] - bins[upper - 1])
    code[upper - 1], code[upper] = 1 - share, share
    return code


def test_symlog_of_known_numbers():
    given = torch.tensor([0.0, math.e - 1, -(math.e**3 - 1)], dtype=torch.float64)
    torch.testing.assert_close(symlog(given), torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64))


@settings(deadline=None)
@given(st.floats(-1e8, 1e8))
def test_symexp_inverts_symlog(number):
    value = torch.tensor(number, dtype=torch.float64)
    assert symexp(symlog(value)).item() == pytest.approx(number, rel=1e-9, abs=1e-12)


def test_bins_are_symmetric_increasing_and_end_at_the_limit():
    for number in (2, 3, 8, 255):
        bins = symexp_bins(number, dtype=torch.float64)
        assert torch.equal(bins, -bins.flip(0)) and bool((bins.diff() > 0).all()) and len(bins) == number
        assert bins[-1].item() == pytest.approx(math.exp(20) - 1)
    with pytest.raises(SpecError, match="two bins"):
        symexp_bins(1)


@settings(deadline=None)
@given(st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=5))
def test_codes_are_those_of_the_slow_reference(numbers):
    expected = torch.tensor([slow_two_hot(number, BINS.tolist()) for number in numbers], dtype=torch.float64)
    torch.testing.assert_close(two_hot(torch.tensor(numbers, dtype=torch.float64), BINS), expected)


def test_a_code_averages_to_its_number_over_nine_orders_of_magnitude():
    bins = symexp_bins(255, dtype=torch.float64)
    numbers = torch.tensor([-3e8, -12.5, -1e-3, 0.0, 0.25, 7.0, 4e8], dtype=torch.float64)
    torch.testing.assert_close((two_hot(numbers, bins) * bins).sum(-1), numbers)
    torch.testing.assert_close(two_hot_mean(two_hot(numbers, bins).log(), bins), numbers)


def test_the_cross_entropy_is_that_of_the_dense_code_with_its_gradient():
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    numbers = torch.tensor([-9.0, -1.0, 0.0, 0.3, 2.5, 9.0], dtype=torch.float64)
    code = torch.tensor([slow_two_hot(number, BINS.tolist()) for number in numbers.tolist()], dtype=torch.float64)
    loss = two_hot_cross_entropy(logits, numbers, BINS)
    torch.testing.assert_close(loss, -(code * logits.log_softmax(-1)).sum(-1))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, logits.softmax(-1) - code)


def test_a_uniform_prediction_is_exactly_zero_in_single_precision():
    assert two_hot_mean(torch.zeros(255), symexp_bins(255)).item() == 0.0
    assert two_hot_mean(torch.zeros(8), symexp_bins(8)).item() == 0.0


def test_logits_that_do_not_fit_are_an_error():
    with pytest.raises(LossError, match="bins"):
        two_hot_cross_entropy(torch.zeros(3, 4), torch.zeros(3), BINS)
    with pytest.raises(LossError, match=r"\[3, 1\]"):
        two_hot_cross_entropy(torch.zeros(3, 5), torch.zeros(3, 1), BINS)
