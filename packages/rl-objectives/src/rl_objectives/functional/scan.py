"""The reverse linear recurrence ``x_t = a_t + b_t x_{t+1}`` (``x_T = 0``) that every discounted return is made of.

Without gradients it is one call of a compiled kernel. With gradients, and inside ``torch.compile``, it is one
operator of ``torch.library``, opaque to the compiler. Its gradient is the transposed recurrence
``y_t = g_t + b_{t-1} y_{t-1}``, as fast as the forward pass, and differentiable in turn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_objectives import native
from rl_objectives.functional.time_series import layout

__all__ = ["forward_scan", "reverse_scan", "torch_forward_scan", "torch_reverse_scan"]


def reverse_scan(a: Tensor, b: Tensor, time_dim: int) -> Tensor:
    """Solve ``x_t = a_t + b_t x_{t+1}`` backwards in time; compiled on the CPU, else :func:`torch_reverse_scan`.

    Args:
        a: the addends, any shape.
        b: the coefficients, same shape. A zero cuts: nothing behind it, NaN included, is seen before it.
        time_dim: the time dimension, a non-negative index.

    Returns:
        x, of the same shape.

    >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.5]), 0)
    tensor([1.7500, 1.5000, 1.0000])
    """
    if native.usable(a, b):
        return native.run("rl_linear_recurrence", [a, b], layout(a.shape, time_dim), (), 1)[0]
    return _reverse_op(a, b, time_dim)


def forward_scan(g: Tensor, b: Tensor, time_dim: int) -> Tensor:
    """Solve ``y_t = g_t + b_{t-1} y_{t-1}`` forwards in time: the transpose of :func:`reverse_scan`.

    >>> forward_scan(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.5]), 0)
    tensor([1.0000, 1.5000, 1.7500])
    """
    if native.usable(g, b):
        return native.run("rl_forward_recurrence", [g, b], layout(g.shape, time_dim), (), 1)[0]
    return _forward_op(g, b, time_dim)


def torch_reverse_scan(a: Tensor, b: Tensor, time_dim: int) -> Tensor:
    """:func:`reverse_scan` in log2(T) torch operations on whole tensors (Hillis and Steele, 1986).

    After the pass with ``reach`` = 2^k each x_t holds its own addend and those of the next 2^(k+1) - 1 steps, and
    ``b`` the product of as many coefficients.
    """
    steps = a.shape[time_dim]
    x, b = a, b.narrow(time_dim, 0, max(steps - 1, 0))
    reach = 1
    while reach < steps:
        ahead = x.narrow(time_dim, reach, steps - reach)
        carried = torch.where(b == 0, torch.zeros_like(ahead), b * ahead)
        complete = x.narrow(time_dim, steps - reach, reach)
        x = torch.cat([x.narrow(time_dim, 0, steps - reach) + carried, complete], time_dim)
        left = max(steps - 2 * reach, 0)
        b = b.narrow(time_dim, 0, left) * b.narrow(time_dim, b.shape[time_dim] - left, left)
        reach *= 2
    return x


def torch_forward_scan(g: Tensor, b: Tensor, time_dim: int) -> Tensor:
    """:func:`forward_scan` by :func:`torch_reverse_scan` on the reversed series."""
    steps = g.shape[time_dim]
    if steps < 2:
        return g
    before = torch.cat([b.narrow(time_dim, steps - 1, 1), b.narrow(time_dim, 0, steps - 1)], time_dim)
    return torch_reverse_scan(g.flip(time_dim), before.flip(time_dim), time_dim).flip(time_dim)


# ---- the operators: what autograd and the compiler see of the two scans


@torch.library.custom_op("rl_objectives::reverse_scan", mutates_args=())
def _reverse_op(a: Tensor, b: Tensor, time_dim: int) -> Tensor:
    a, b = a.detach(), b.detach()
    if native.kernel_for(a, b):
        return native.run("rl_linear_recurrence", [a, b], layout(a.shape, time_dim), (), 1)[0]
    return torch_reverse_scan(a, b, time_dim).contiguous().clone()  # an operator returns memory of its own


@torch.library.custom_op("rl_objectives::forward_scan", mutates_args=())
def _forward_op(g: Tensor, b: Tensor, time_dim: int) -> Tensor:
    g, b = g.detach(), b.detach()
    if native.kernel_for(g, b):
        return native.run("rl_forward_recurrence", [g, b], layout(g.shape, time_dim), (), 1)[0]
    return torch_forward_scan(g, b, time_dim).contiguous().clone()


def _like_first(first: Tensor, b: Tensor, time_dim: int) -> Tensor:
    """What the compiler is told of both results: dense, of the first argument's shape and dtype."""
    return first.new_empty(first.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], output)
    ctx.time_dim = inputs[2]


def _reverse_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
    b, x = ctx.saved_tensors
    y = forward_scan(gradient, b, ctx.time_dim)
    return y, y * _following(x, ctx.time_dim) if ctx.needs_input_grad[1] else None, None


def _forward_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
    b, y = ctx.saved_tensors
    z = reverse_scan(gradient, b, ctx.time_dim)
    return z, y * _following(z, ctx.time_dim) if ctx.needs_input_grad[1] else None, None


def _following(x: Tensor, time_dim: int) -> Tensor:
    """x_{t+1}, 0 behind the last step."""
    steps = x.shape[time_dim]
    if steps == 0:
        return x
    return torch.cat([x.narrow(time_dim, 1, steps - 1), torch.zeros_like(x.narrow(time_dim, 0, 1))], time_dim)


_reverse_op.register_fake(_like_first)
_forward_op.register_fake(_like_first)
_reverse_op.register_autograd(_reverse_gradient, setup_context=_remember)
_forward_op.register_autograd(_forward_gradient, setup_context=_remember)
