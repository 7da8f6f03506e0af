"""One optimiser per group: stepped, clipped and restored together, never twice on one parameter."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from rl_core.errors import CheckpointError, SpecError
from rl_marl.losses.optimizers import optimizer_per_group


def make_losses():
    torch.manual_seed(0)
    return {"predators": nn.Linear(2, 1), "prey": nn.Linear(3, 1)}


def backward(losses, scale=1.0):
    for loss in losses.values():
        (scale * loss(torch.ones(1, loss.in_features)).sum()).backward()


def test_each_group_is_stepped_with_its_own_options():
    losses = make_losses()
    optimizers = optimizer_per_group(losses, {"predators": lambda p: SGD(p, lr=1.0), "prey": lambda p: SGD(p, lr=0.5)})
    before = {group: loss.weight.detach().clone() for group, loss in losses.items()}
    backward(losses)
    optimizers.step()
    torch.testing.assert_close(losses["predators"].weight, before["predators"] - 1.0)
    torch.testing.assert_close(losses["prey"].weight, before["prey"] - 0.5)
    optimizers.zero_grad()
    assert all(p.grad is None for loss in losses.values() for p in loss.parameters())


def test_it_is_a_mapping_from_group_to_optimiser():
    losses = make_losses()
    optimizers = optimizer_per_group(losses, lambda p: Adam(p, lr=1e-3))
    assert list(optimizers) == ["predators", "prey"] and len(optimizers) == 2
    owned = {id(p) for p in optimizers["prey"].param_groups[0]["params"]}
    assert owned == {id(p) for p in losses["prey"].parameters()}


def test_each_group_is_clipped_by_itself():
    losses = make_losses()
    optimizers = optimizer_per_group(losses, lambda p: SGD(p, lr=1.0))
    backward({"predators": losses["predators"]}, scale=10.0)
    backward({"prey": losses["prey"]}, scale=0.1)
    norms = optimizers.clip_grad_norm(1.0)
    assert norms["predators"].item() == pytest.approx(10 * 3**0.5)  # two weights and a bias
    assert norms["prey"].item() == pytest.approx(0.1 * 2)
    clipped = torch.cat([p.grad.flatten() for p in losses["predators"].parameters()]).norm()
    assert clipped.item() == pytest.approx(1.0, abs=1e-4)
    torch.testing.assert_close(losses["prey"].weight.grad, torch.full((1, 3), 0.1))


def test_frozen_parameters_are_left_out():
    losses = make_losses()
    losses["prey"].bias.requires_grad_(False)
    optimizers = optimizer_per_group(losses, lambda p: SGD(p, lr=1.0))
    assert [p.shape for p in optimizers["prey"].param_groups[0]["params"]] == [torch.Size([1, 3])]


def test_state_dict_restores_every_group():
    losses = make_losses()
    optimizers = optimizer_per_group(losses, lambda p: Adam(p, lr=1e-3))
    backward(losses)
    optimizers.step()
    others = optimizer_per_group(make_losses(), lambda p: Adam(p, lr=0.5))
    others.load_state_dict(optimizers.state_dict())
    assert others["prey"].param_groups[0]["lr"] == 1e-3 and len(others["prey"].state) == 2
    with pytest.raises(CheckpointError, match=r"holds the groups \['prey'\].*are of \['predators', 'prey'\]"):
        others.load_state_dict({"prey": optimizers["prey"].state_dict()})


def test_a_parameter_of_two_groups_is_refused():
    losses = make_losses()
    losses["both"] = nn.ModuleList([losses["prey"]])
    with pytest.raises(SpecError, match=r"'prey' and 'both' share the parameter '0.weight'"):
        optimizer_per_group(losses, lambda p: SGD(p, lr=1.0))


def test_wrong_arguments_are_refused():
    with pytest.raises(SpecError, match="at least one group"):
        optimizer_per_group({}, lambda p: SGD(p, lr=1.0))
    with pytest.raises(SpecError, match=r"make is for the groups \['prey'\], the losses are of"):
        optimizer_per_group(make_losses(), {"prey": lambda p: SGD(p, lr=1.0)})
    with pytest.raises(SpecError, match="'idle' has no trainable parameter"):
        optimizer_per_group({"idle": nn.Identity()}, lambda p: SGD(p, lr=1.0))
