"""The reverse linear recurrence ``x_t = a_t + b_t x_{t+1}`` (``x_T = 0``) that every discounted return is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_objectives import native
from rl_objectives.functional.time_series import layout

__all__ = ["reverse_scan", "torch_reverse_scan"]


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
    return torch_reverse_scan(a, b, time_dim)


def torch_reverse_scan(a: Tensor, b: Tensor, time_dim: int) -> Tensor:
    """:func:`reverse_scan` in log2(T) differentiable torch operations on whole tensors (Hillis and Steele, 1986).

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
