"""What losses log about ratios and critics: the compiled and the torch numbers are those of the formulas."""

import pytest
import torch

from rl_objectives import native
from rl_objectives.functional import statistics
from rl_objectives.functional.standardize import standardize, standardize_groups


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ratio_statistics_are_those_of_the_weights(dtype, backend):
    torch.manual_seed(0)
    log_ratio = torch.randn(5, 7, 1, dtype=dtype)
    weight, found = log_ratio.exp(), statistics.ratio_statistics(log_ratio)
    torch.testing.assert_close(found.kl_approx, -log_ratio.mean())
    torch.testing.assert_close(found.effective_sample_size, weight.sum() ** 2 / weight.square().sum() / 35)
    torch.testing.assert_close(found.largest, weight.max())
    torch.testing.assert_close(found.mean, weight.mean())


def test_weights_that_overflow_leave_their_sample_size_finite(backend):
    found = statistics.ratio_statistics(torch.tensor([200.0, 200.0, -50.0, -50.0]))
    assert found.effective_sample_size.item() == pytest.approx(0.5)
    assert found.largest.isinf()


def test_a_nan_ratio_shows(backend):
    log_ratio = torch.tensor([0.0, float("nan"), 1.0])
    assert all(value.isnan() for value in statistics.ratio_statistics(log_ratio))
    assert statistics.share_outside(log_ratio, -1.0, 2.0).item() == pytest.approx(1 / 3)


def test_no_rows_have_no_statistics(backend):
    assert all(value.isnan() for value in statistics.ratio_statistics(torch.zeros(0, 1)))
    assert statistics.explained_variance(torch.zeros(0), torch.zeros(0)).shape == ()


def test_the_share_outside_counts_neither_edge(backend):
    values = torch.tensor([0.79, 0.8, 1.0, 1.2, 1.21])
    assert statistics.share_outside(values, 0.8, 1.2).item() == pytest.approx(0.4)
    assert statistics.share_outside(values, torch.tensor(0.8), torch.tensor(1.2)).item() == pytest.approx(0.4)


def test_explained_variance_by_hand(backend):
    target, prediction = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[1.0], [2.0], [6.0]])
    # errors 0, 1, -1: variance 2/3; of the target 8/3
    assert statistics.explained_variance(prediction, target).item() == pytest.approx(0.75)
    constant = torch.full((3, 1), 7.0)
    assert statistics.explained_variance(constant, constant).item() == 1.0
    far = 1e4
    assert statistics.explained_variance(prediction + far, target + far).item() == pytest.approx(0.75, abs=1e-3)


def test_groups_have_moments_of_their_own():
    values = torch.tensor([[1.0], [3.0], [10.0], [30.0], [5.0], [1e6]])
    groups = torch.tensor([[4], [4], [9], [9], [7], [9]])
    mask = torch.tensor([[True], [True], [True], [True], [True], [False]])
    result = standardize_groups(values, groups, mask).flatten()
    for rows in ([0, 1], [2, 3]):
        torch.testing.assert_close(result[rows], standardize(values.flatten()[rows]))
    assert result[4] == 0
