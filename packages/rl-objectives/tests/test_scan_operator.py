"""The scans as operators: gradients, torch.compile, and the same numbers with and without the compiled library."""

import pytest
import torch

from rl_objectives import functional as R
from rl_objectives import native
from rl_objectives.functional import scan


def series(requires_grad=False, steps=7):
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, steps, 2, dtype=torch.float64)
    b[:, ::3] = 0
    return a.requires_grad_(requires_grad), b.requires_grad_(requires_grad)


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    return request.param


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 8])
def test_the_forward_scan_solves_its_recurrence(steps, backend):
    g, b = series(steps=steps)
    expected, y = torch.zeros_like(g), torch.zeros(3, 2, dtype=torch.float64)
    for t in range(steps):
        y = g[:, t] + (b[:, t - 1] * y if t else 0)
        expected[:, t] = y
    torch.testing.assert_close(scan.forward_scan(g, b, 1), expected)
    torch.testing.assert_close(scan.torch_forward_scan(g, b, 1), expected)


@pytest.mark.parametrize("function", [scan.reverse_scan, scan.forward_scan])
def test_first_and_second_derivatives_are_right(function, backend):
    a, b = series(requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: function(a, b, 1), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: function(a, b, 1), (a, b))


@pytest.mark.parametrize("operator", [scan._reverse_op, scan._forward_op])
def test_the_operators_are_well_formed(operator):
    torch.library.opcheck(operator, (*series(requires_grad=True), 1))


def test_a_coefficient_that_happens_to_be_zero_still_has_a_gradient():
    value, reward = torch.ones(3, 1), torch.ones(3, 1)
    done, gamma = torch.zeros(3, 1, dtype=torch.bool), torch.zeros((), requires_grad=True)
    R.td1_return_estimate(gamma, value, reward, done)[0].backward()
    assert gamma.grad == 1.0  # d/dg of 1 + g (1 + g (1 + g)) at g = 0


def test_no_gradient_comes_from_behind_an_end():
    reward = torch.ones(4, 1, requires_grad=True)
    done = torch.tensor([[False], [True], [False], [False]])
    R.reward2go(reward, done, 0.5)[0].backward()
    assert reward.grad.flatten().tolist() == [1.0, 0.5, 0.0, 0.0]


def arguments(dtype=torch.float32):
    torch.manual_seed(0)
    value, next_value, reward, log_pi, log_mu = torch.randn(5, 3, 11, 1, dtype=dtype)
    done = torch.rand(3, 11, 1) < 0.2
    return value, next_value, reward, done, done & (torch.rand(3, 11, 1) < 0.5), log_pi, log_mu


def everything(value, next_value, reward, done, terminated, log_pi, log_mu, gamma):
    """All return functions at once."""
    return (
        *R.generalized_advantage_estimate(gamma, 0.8, value, next_value, reward, done, terminated),
        R.td0_return_estimate(gamma, next_value, reward, terminated),
        R.td1_return_estimate(gamma, next_value, reward, done, terminated),
        R.td_lambda_return_estimate(gamma, 0.8, next_value, reward, done, terminated),
        *R.vtrace_advantage_estimate(gamma, log_pi, log_mu, value, next_value, reward, done, terminated),
        R.retrace_return_estimate(gamma, 0.8, log_pi, log_mu, value, next_value, reward, done, terminated),
        R.n_step_return_estimate(3, gamma, next_value, reward, done, terminated),
        R.reward2go(reward, done, gamma),
    )


@pytest.mark.parametrize("per_step", [False, True])
def test_all_return_functions_compile_into_one_graph(per_step):
    inputs = arguments()
    gamma = torch.full((3, 11, 1), 0.9) if per_step else 0.9
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")(*inputs, gamma)
    for one, other in zip(compiled, everything(*inputs, gamma), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_pass_through_the_compiled_graph():
    inputs = arguments()

    def gradient(function):
        value = inputs[0].clone().requires_grad_()
        advantage, target = function(0.9, 0.8, value, value * 2, *inputs[2:5])
        (advantage.square() + target).sum().backward()
        return value.grad

    compiled = torch.compile(R.generalized_advantage_estimate, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled), gradient(R.generalized_advantage_estimate))
