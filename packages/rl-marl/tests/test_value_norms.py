"""Value normalisers against numpy, and what they promise to a loss."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from rl_core.errors import SpecError
from rl_marl.value_norm import PopArtValueNorm, RunningValueNorm

KINDS = [RunningValueNorm, PopArtValueNorm]


def batches(count=5, size=7, components=2):
    generator = np.random.default_rng(0)
    return [generator.normal(3.0 * k, 1.0 + k, size=(size, 3, components)) for k in range(count)]


def test_running_moments_are_those_of_all_targets_seen():
    norm, seen = RunningValueNorm(2), []
    for targets in batches():
        norm.update(torch.from_numpy(targets))
        seen.append(targets.reshape(-1, 2))
        mean, variance = norm.moments()
        np.testing.assert_allclose(mean.numpy(), np.concatenate(seen).mean(0), rtol=1e-12)
        np.testing.assert_allclose(variance.numpy(), np.concatenate(seen).var(0), rtol=1e-12)


def test_running_moments_are_exact_far_from_zero():
    norm = RunningValueNorm()
    for value in (1e8, 1e8 + 1, 1e8 + 2):
        norm.update(torch.tensor([[value]], dtype=torch.float64))
    mean, variance = norm.moments()
    assert mean.item() == 1e8 + 1 and variance.item() == pytest.approx(2 / 3, rel=1e-6)


def test_popart_moments_are_debiased_moving_averages():
    """Weights beta^(k-1-j) over the k batches so far, normalised to one."""
    beta, norm, firsts, seconds = 0.9, PopArtValueNorm(2, beta=0.9), [], []
    for targets in batches():
        norm.update(torch.from_numpy(targets))
        firsts.append(targets.mean((0, 1)))
        seconds.append((targets**2).mean((0, 1)))
        weights = beta ** np.arange(len(firsts))[::-1]
        weights /= weights.sum()
        expected = weights @ np.stack(firsts)
        mean, variance = norm.moments()
        np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(variance.numpy(), weights @ np.stack(seconds) - expected**2, rtol=1e-10)


def test_popart_has_no_start_up_bias_at_the_default_decay():
    norm = PopArtValueNorm()
    norm.update(torch.tensor([[10.0], [14.0]]))
    mean, variance = norm.moments()
    assert mean.item() == pytest.approx(12.0) and variance.item() == pytest.approx(4.0)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_targets_do_not_count(kind):
    norm, expected = kind(), kind()
    targets, mask = torch.randn(6, 4, 1), torch.rand(6, 4) < 0.5
    expected.update(targets[mask])
    targets[~mask] = float("nan")
    norm.update(targets, mask)
    for one, other in zip(norm.moments(), expected.moments(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_valid_rows_changes_nothing(kind):
    norm, targets = kind(), torch.randn(5, 1)
    norm.update(targets)
    before = copy.deepcopy(norm.state_dict())
    norm.update(torch.full((3, 1), 99.0), torch.zeros(3, dtype=torch.bool))
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_update_values_stay_as_they_are(kind):
    values = torch.randn(4, 1)
    assert torch.equal(kind().normalize(values), values)
    assert torch.equal(kind().denormalize(values), values)


@pytest.mark.parametrize("kind", KINDS)
def test_normalised_targets_have_mean_0_and_variance_1(kind):
    norm, targets = kind(3), torch.randn(50, 3) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, -5.0, 2.0])
    norm.update(targets)
    scaled = norm.normalize(targets)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.var(0, correction=0), torch.ones(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(norm.denormalize(scaled), targets)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_targets_are_divided_by_the_root_of_epsilon(kind):
    norm = kind(epsilon=0.04)
    norm.update(torch.full((4, 1), 3.0))
    torch.testing.assert_close(norm.normalize(torch.tensor([[4.0]])), torch.tensor([[5.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_restores_the_statistics(kind):
    norm, other = kind(), kind()
    norm.update(torch.randn(9, 1) * 4 + 2)
    other.load_state_dict(norm.state_dict())
    values = torch.randn(3, 1)
    assert torch.equal(norm.normalize(values), other.normalize(values))


@pytest.mark.parametrize("kind", KINDS)
def test_casting_the_module_keeps_the_statistics_precise(kind):
    norm = kind()
    norm.update(torch.tensor([[1e6], [1e6 + 0.25]], dtype=torch.float64))
    mean, variance = norm.moments()
    cast = copy.deepcopy(norm).to(torch.float16)
    assert torch.equal(cast.moments()[0], mean) and torch.equal(cast.moments()[1], variance)
    assert cast.normalize(torch.zeros(2, 1)).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_through_the_values_and_not_into_the_statistics(kind):
    norm, values = kind(), torch.randn(5, 1, requires_grad=True)
    norm.update(values * 2)
    assert not any(buffer.requires_grad for buffer in norm.buffers()) and not list(norm.parameters())
    norm.normalize(values).sum().backward()
    std = norm.mean_and_std()[1].float()
    torch.testing.assert_close(values.grad, (1 / std).expand(5, 1))


def test_popart_keeps_the_raw_outputs_when_its_statistics_move():
    torch.manual_seed(0)
    layer = nn.Linear(4, 2).double()
    norm, inputs = PopArtValueNorm(2, beta=0.5, layer=layer), torch.randn(6, 4, dtype=torch.float64)
    for targets in batches(3):
        before = norm.denormalize(layer(inputs))
        weights = layer.weight.detach().clone()
        norm.update(torch.from_numpy(targets))
        assert not torch.equal(layer.weight, weights)
        torch.testing.assert_close(norm.denormalize(layer(inputs)), before)


def test_the_rescaled_layer_stays_the_critics_own():
    norm = PopArtValueNorm(layer=nn.Linear(3, 1))
    assert not list(norm.parameters()) and set(norm.state_dict()) == {"first", "second", "weight"}


def test_wrong_arguments_are_refused():
    with pytest.raises(SpecError, match="beta lies in"):
        PopArtValueNorm(beta=1.0)
    with pytest.raises(SpecError, match="epsilon > 0; got 1 and 0"):
        RunningValueNorm(epsilon=0)
    with pytest.raises(SpecError, match="1 outputs and a bias"):
        PopArtValueNorm(layer=nn.Linear(3, 2))
    with pytest.raises(SpecError, match=r"floats \[\*B, 1\]; got torch.float32 \[4, 2\]"):
        RunningValueNorm().update(torch.zeros(4, 2))
    with pytest.raises(SpecError, match=r"mask is bool \[4\] .* got torch.bool \[4, 1\]"):
        RunningValueNorm().update(torch.zeros(4, 1), torch.ones(4, 1, dtype=torch.bool))
