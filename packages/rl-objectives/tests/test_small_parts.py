"""Distances, grouped optimisers, held-out networks and the pieces of PPO on plain tensors."""

import pytest
import torch
from torch import nn

from rl_core.errors import SpecError
from rl_objectives import distance_loss, group_optimizers, hold_out_net
from rl_objectives.functional.ppo import clipped_surrogate, explained_variance, standardize


@pytest.mark.parametrize(("name", "expected"), [("l2", [0.25, 9.0]), ("l1", [0.5, 3.0]), ("smooth_l1", [0.125, 2.5])])
def test_distances_by_hand(name, expected):
    assert distance_loss(torch.tensor([0.0, 3.0]), torch.tensor([0.5, 0.0]), name).tolist() == expected


def test_distances_do_not_broadcast():
    with pytest.raises(SpecError, match=r"prediction \[4, 1\] and target \[4\]"):
        distance_loss(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, 1.2), (1.5, -1.0, -1.5), (0.5, 1.0, 0.5), (0.5, -1.0, -0.8), (1.1, 2.0, 2.2)],
)
def test_the_clip_limits_gains_and_never_losses(ratio, advantage, expected):
    bounds = torch.tensor(0.8), torch.tensor(1.2)
    result = clipped_surrogate(torch.tensor(ratio), torch.tensor(advantage), *bounds)
    assert result.item() == pytest.approx(expected)


def test_a_clipped_gain_has_no_gradient():
    ratio = torch.tensor([1.5, 1.5], requires_grad=True)
    clipped_surrogate(ratio, torch.tensor([1.0, -1.0]), torch.tensor(0.8), torch.tensor(1.2)).sum().backward()
    assert ratio.grad.tolist() == [0.0, -1.0]


def test_standardising_one_value_or_equal_values_gives_zeros():
    assert standardize(torch.ones(1, 1)).tolist() == [[0.0]]
    assert standardize(torch.ones(3, 1)).abs().max() == 0
    assert standardize(torch.randn(3, 1), torch.zeros(3, 1, dtype=torch.bool)).isfinite().all()


def test_a_mask_chooses_what_the_moments_count():
    values = torch.tensor([1.0, 2.0, 3.0, 1e9])
    mask = torch.tensor([True, True, True, False])
    torch.testing.assert_close(standardize(values, mask)[:3], torch.tensor([-1.0, 0.0, 1.0]))


def test_explained_variance_of_a_constant_target_is_finite():
    assert explained_variance(torch.ones(3), torch.ones(3)).item() == 1.0


def test_grouped_optimisers_step_as_one_with_their_own_rates():
    a, b = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    both = group_optimizers(torch.optim.SGD([a], lr=0.1), torch.optim.SGD([b], lr=0.01))
    (a + b).sum().backward()
    both.step()
    assert a.item() == pytest.approx(-0.1) and b.item() == pytest.approx(-0.01)
    both.zero_grad()
    assert a.grad is None and b.grad is None


def test_optimisers_of_two_classes_cannot_be_grouped():
    a = nn.Parameter(torch.zeros(1))
    with pytest.raises(SpecError, match="one class; got SGD and Adam"):
        group_optimizers(torch.optim.SGD([a], lr=0.1), torch.optim.Adam([a]))
    with pytest.raises(SpecError, match="at least one"):
        group_optimizers()


def test_a_held_out_network_passes_gradients_and_gets_none():
    net, x = nn.Linear(1, 1), torch.ones(1, requires_grad=True)
    net.bias.requires_grad_(False)
    with hold_out_net(net):
        net(x).backward()
    assert x.grad is not None and net.weight.grad is None
    assert net.weight.requires_grad and not net.bias.requires_grad
