"""Mean and variance of everything seen so far."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError

__all__ = ["RunningMeanStd"]


class RunningMeanStd(nn.Module):
    """Mean and (biased) variance of all values given to :meth:`update`, kept in float64.

    Args:
        shape: shape of one value; each element has moments of its own.
        epsilon: added to the variance before its root.
        device: device of the moments.

    Chan, Golub and LeVeque, 1983, Algorithms for Computing the Sample Variance, eq. 2.1.

    >>> moments = RunningMeanStd()
    >>> moments.update(torch.tensor([1.0, 3.0]))
    >>> moments.update(torch.tensor([5.0]))
    >>> round(moments.mean.item(), 4), round(moments.var.item(), 4)
    (3.0, 2.6667)
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(
        self, shape: Sequence[int] = (), *, epsilon: float = 1e-8, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.shape, self.epsilon = torch.Size(shape), epsilon
        self.register_buffer("mean", torch.zeros(self.shape, dtype=torch.float64, device=device))
        self.register_buffer("var", torch.ones(self.shape, dtype=torch.float64, device=device))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64, device=device))

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Let a batch ``[*B, *shape]`` count; nothing happens for an empty one.

        Raises:
            SpecError: the values have another shape.
        """
        self._check(values)
        rows = values.reshape(-1, *self.shape).to(self.mean)
        number = rows.shape[0]
        if number == 0:
            return
        var, mean = torch.var_mean(rows, 0, correction=0)
        total = self.count + number
        shift = mean - self.mean
        # Before the first batch var is a placeholder, which a count of 0 removes.
        squares = self.var * self.count + var * number + shift.square() * (self.count * number / total)
        self.mean.add_(shift * (number / total))
        self.var.copy_(squares / total)
        self.count.copy_(total)

    def normalize(self, values: Tensor) -> Tensor:
        """Values ``[*B, *shape]`` less the mean, divided by the standard deviation, in their own dtype."""
        self._check(values)
        return (values - self.mean.to(values.dtype)) / self._std(values.dtype)

    def scale(self, values: Tensor) -> Tensor:
        """Values divided by the standard deviation alone; their shape broadcasts with ``shape``."""
        return values / self._std(values.dtype)

    def forward(self, values: Tensor) -> Tensor:
        """:meth:`normalize`."""
        return self.normalize(values)

    def _std(self, dtype: torch.dtype) -> Tensor:
        return (self.var + self.epsilon).sqrt().to(dtype)

    def _check(self, values: Tensor) -> None:
        count = len(self.shape)
        if values.shape[values.ndim - count :] != self.shape or values.ndim < count:
            raise SpecError(f"RunningMeanStd of shape {list(self.shape)} got values {list(values.shape)}")
