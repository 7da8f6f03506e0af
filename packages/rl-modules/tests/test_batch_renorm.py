"""Batch renormalisation against the paper's algorithm 1."""

import pytest
import torch
from torch import nn

from rl_core.errors import SpecError
from rl_core.registry import registry
from rl_modules import BatchRenorm1d


def make(**options):
    return BatchRenorm1d(4, **{"warmup_steps": 0, "momentum": 0.1, **options}).double()


def rows(count=16, shift=0.7, scale=2.0):
    torch.manual_seed(1)
    return torch.randn(count, 4, dtype=torch.float64) * scale + shift


def reference(x, mean, var, max_r, max_d, eps=1e-5):
    """Ioffe, 2017, algorithm 1: the output, with gradient through the batch moments and not through r and d."""
    mu, sigma = x.mean(0), (x.var(0, unbiased=False) + eps).sqrt()
    running = (var + eps).sqrt()
    r = (sigma / running).clamp(1 / max_r, max_r).detach()
    d = ((mu - mean) / running).clamp(-max_d, max_d).detach()
    return (x - mu) / sigma * r + d


@pytest.mark.parametrize(("max_r", "max_d"), [(3.0, 5.0), (1.1, 0.2), (1.0, 0.0)])
def test_outputs_and_gradients_equal_the_papers(max_r, max_d):
    norm = make(max_r=max_r, max_d=max_d)
    x = rows().requires_grad_()
    factor = torch.randn_like(x)
    out = norm(x)
    expected = reference(x, torch.zeros(4).double(), torch.ones(4).double(), max_r, max_d)
    torch.testing.assert_close(out, expected)
    (one,) = torch.autograd.grad((out * factor).sum(), [x], retain_graph=True)
    (other,) = torch.autograd.grad((expected * factor).sum(), [x])
    torch.testing.assert_close(one, other)


def test_without_clips_training_and_evaluation_agree():
    norm, x = make(max_r=1e6, max_d=1e6), rows()
    fixed = make().eval()
    torch.testing.assert_close(norm(x), fixed(x))


def test_the_warm_up_is_batch_normalisation():
    norm, plain = make(warmup_steps=2), nn.BatchNorm1d(4, momentum=0.1).double()
    for step in range(2):
        x = rows(shift=0.5 * step)
        torch.testing.assert_close(norm(x), plain(x))
    torch.testing.assert_close(norm.running_mean, plain.running_mean)
    torch.testing.assert_close(norm.running_var, plain.running_var)
    assert norm.num_batches_tracked.item() == 2
    x = rows(shift=3.0)
    moments = norm.running_mean.clone(), norm.running_var.clone()
    torch.testing.assert_close(norm(x), reference(x, *moments, 3.0, 5.0))


def test_a_smooth_warm_up_opens_the_clips_step_by_step():
    norm = make(warmup_steps=4, smooth=True)
    for step in range(6):
        x = rows(shift=2.0, scale=3.0)
        share = min(step / 4, 1.0)
        moments = norm.running_mean.clone(), norm.running_var.clone()
        torch.testing.assert_close(norm(x), reference(x, *moments, 1 + 2 * share, 5 * share))


def test_evaluation_uses_and_leaves_the_running_moments():
    norm, x = make(), rows()
    norm(x)
    moments = norm.running_mean.clone(), norm.running_var.clone()
    norm.eval()
    torch.testing.assert_close(norm(x[:1]), (x[:1] - moments[0]) / (moments[1] + 1e-5).sqrt())
    assert torch.equal(norm.running_mean, moments[0]) and norm.num_batches_tracked.item() == 1


def test_leading_dims_are_rows_and_weights_apply():
    norm, twin, x = make(), make(), rows()
    with torch.no_grad():
        norm.weight.fill_(2.0)
        norm.bias.fill_(1.0)
    torch.testing.assert_close(norm(x.reshape(2, 8, 4)).reshape(16, 4), 2 * twin(x) + 1)


def test_a_later_call_does_not_spoil_the_gradient_of_an_earlier_one():
    norm, x = make().eval(), rows()
    norm.running_var.fill_(4.0)
    y = x.clone().requires_grad_()
    out = norm(y)
    norm.train()(x * 10)
    out.sum().backward()
    torch.testing.assert_close(y.grad, torch.full_like(y, (4 + 1e-5) ** -0.5))


def test_it_resets_and_reloads():
    norm, other, x = make(), make(), rows()
    norm(x)
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other.running_var, norm.running_var)
    norm.reset_parameters()
    assert (norm.running_mean == 0).all() and (norm.running_var == 1).all() and norm.num_batches_tracked.item() == 0
    assert registry.modules.get("batch_renorm") is BatchRenorm1d


def test_wrong_input_says_what_is_right():
    with pytest.raises(SpecError, match=r"got \[3, 5\]: another last dim"):
        make()(torch.zeros(3, 5).double())
    with pytest.raises(SpecError, match="at least 2 rows in training"):
        make()(torch.zeros(1, 4).double())
    for options in ({"momentum": 0.0}, {"max_r": 0.5}, {"max_d": -1.0}, {"warmup_steps": -1}):
        with pytest.raises(SpecError, match="BatchRenorm1d needs momentum"):
            make(**options)
