"""Distributions within bounds compile into one graph, whether or not they were called before."""

import pytest
import torch

from rl_modules import TanhDelta, TanhNormal, TruncatedNormal

LOW, HIGH = torch.tensor([-3.0, -1.7]), torch.tensor([0.1, 0.3])


@pytest.fixture(autouse=True)
def no_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def scored(dist, unit):
    """Actions with their log-probabilities: what a loss asks for. Not drawn at random, to be compared."""
    action = dist.low + (dist.high - dist.low) * (0.5 + 0.4 * unit)
    return dist.mode.sum() + (unit.sum(-1) * dist.log_prob(action)).sum()


def compare(function, *inputs):
    """Compiled at first, and then as it is; values and gradients."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    first = compiled(*leaves)
    again, plain = compiled(*leaves), function(*leaves)
    torch.testing.assert_close(first, plain)
    torch.testing.assert_close(again, plain)
    found, wanted = (torch.autograd.grad(value, leaves, allow_unused=True) for value in (first, plain))
    torch.testing.assert_close(found, wanted)


def arguments():
    torch.manual_seed(0)
    return torch.randn(5, 2), torch.rand(5, 2) + 0.1, torch.rand(5, 2) - 0.5


# Bounds that are numbers are remembered over calls: each test takes some of its own.
@pytest.mark.parametrize(("kind", "low", "high"), [(TanhNormal, -3.3, 0.7), (TruncatedNormal, -3.1, 0.9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_that_are_numbers(kind, low, high, dtype):
    low += 0.01 * (dtype is torch.float64)
    inputs = (value.to(dtype) for value in arguments())
    compare(lambda loc, scale, unit: scored(kind(loc, scale, low=low, high=high), unit), *inputs)


@pytest.mark.parametrize("kind", [TanhNormal, TruncatedNormal])
@pytest.mark.parametrize(("low", "high", "dtype"), [(LOW, HIGH, torch.float32), (-2.3, 1.7, torch.float64)])
def test_bounds_that_are_bound_before(kind, low, high, dtype):
    make = kind.bind(low=low, high=high)
    inputs = (value.to(dtype) for value in arguments())
    compare(lambda loc, scale, unit: scored(make(loc, scale), unit), *inputs)


def test_bounds_that_are_tensors_in_compiled_code():
    def function(loc, scale, unit, low):
        return scored(TanhNormal(loc, scale, low=low.detach(), high=low.detach() + 2.0), unit)

    compare(function, *arguments(), LOW)


def test_drawn_actions_stay_within_bounds():
    low, high = torch.tensor(-0.1), torch.tensor(0.3)  # in single precision center + half is above high
    make = TanhNormal.bind(low=low, high=high)
    draw = torch.compile(
        lambda loc, scale: make(loc, scale).rsample_and_log_prob(), fullgraph=True, backend="aot_eager"
    )
    action, log_prob = draw(torch.tensor([[30.0], [-30.0]]), torch.ones(2, 1))
    assert bool((action >= low).all() and (action <= high).all() and log_prob.isfinite().all())


def test_the_actor_of_a_single_point():
    compare(lambda loc: TanhDelta(loc, low=-3.15, high=0.95).mode.square().sum(), torch.randn(5, 2))


def test_bounds_that_are_no_interval_are_refused_in_compiled_code_too():
    function = torch.compile(lambda loc: TanhNormal(loc, 1.0, low=1.5, high=-2.5).mode, backend="aot_eager")
    with pytest.raises(ValueError, match=r"finite bounds with low < high; got low=1.5, high=-2.5"):
        function(torch.zeros(1, 1))
