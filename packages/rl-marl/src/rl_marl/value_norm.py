"""Value normalisers: running moments of value targets, so that a critic learns numbers of order one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError

__all__ = ["PopArtValueNorm", "RunningValueNorm", "ValueNorm"]


class ValueNorm(nn.Module, ABC):
    r"""Base of the value normalisers: each keeps a mean and a variance per value component.

    .. math:: \mathrm{normalize}(x) = (x - \mu) / \sigma, \qquad \sigma = \sqrt{\max(v, \epsilon)}

    and ``denormalize`` is its inverse. Before the first update both leave values as they are. The statistics are
    buffers in float64 (also where the module is cast): ``state_dict`` holds them.

    A subclass implements :meth:`observe` and :meth:`moments`.

    Args:
        shape: the values' components, the size of their last dimension.
        epsilon: smallest variance.

    Raises:
        SpecError: shape or epsilon is not positive.
    """

    def __init__(self, shape: int = 1, *, epsilon: float = 1e-5) -> None:
        super().__init__()
        if shape < 1 or epsilon <= 0:
            raise SpecError(f"{type(self).__name__} needs shape >= 1 and epsilon > 0; got {shape} and {epsilon}")
        self.shape = shape
        self.epsilon = epsilon

    @abstractmethod
    def observe(self, number: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Take in a batch by its moments; with ``number`` 0 nothing changes.

        Args:
            number: how many rows, a float64 scalar.
            mean: their mean, float64 [shape].
            squares: their summed squared distances from that mean, float64 [shape].
        """

    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, each float64 [shape]: 0 and 1 before the first update."""

    @torch.no_grad()
    def update(self, targets: Tensor, mask: Tensor | None = None) -> None:
        """Take value targets into the statistics.

        Args:
            targets: raw (not normalised) values [*B, shape].
            mask: bool [*B], True in rows that count; None: every row does.

        Raises:
            SpecError: the targets' last dimension is not ``shape``, or the mask does not fit.
        """
        self._check(targets)
        rows = targets.detach().to(torch.float64).reshape(-1, self.shape)
        if mask is None:
            valid = torch.ones(rows.shape[0], 1, dtype=torch.bool, device=rows.device)
        elif mask.dtype is torch.bool and mask.shape == targets.shape[:-1]:
            valid = mask.reshape(-1, 1)
        else:
            raise SpecError(
                f"{type(self).__name__}: the mask is bool {list(targets.shape[:-1])} for targets "
                f"{list(targets.shape)}; got {mask.dtype} {list(mask.shape)}"
            )
        # No branch on the number: reading it would wait for an accelerator.
        number = valid.sum().to(torch.float64)
        mean = rows.masked_fill(~valid, 0).sum(0) / number.clamp_min(1)
        squares = (rows - mean).masked_fill(~valid, 0).square().sum(0)
        self.observe(number, mean, squares)

    def normalize(self, values: Tensor) -> Tensor:
        """Raw values [*B, shape] in units of the statistics."""
        mean, std = self._scale(values)
        return (values - mean) / std

    def denormalize(self, values: Tensor) -> Tensor:
        """Normalised values [*B, shape] as raw ones."""
        mean, std = self._scale(values)
        return values * std + mean

    def _scale(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation in the values' dtype."""
        self._check(values)
        mean, std = self.mean_and_std()
        return mean.to(values.dtype), std.to(values.dtype)

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (at least the root of epsilon), each float64 [shape]."""
        mean, variance = self.moments()
        return mean, variance.clamp_min(self.epsilon).sqrt()

    def _check(self, values: Tensor) -> None:
        if values.ndim == 0 or values.shape[-1] != self.shape or not values.is_floating_point():
            raise SpecError(
                f"{type(self).__name__}(shape={self.shape}) takes floats [*B, {self.shape}]; got {values.dtype} "
                f"{list(values.shape)}"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the statistics with the module, and keep their precision where it is cast."""
        kept = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, statistic in kept.items():
            moved = self._buffers[name]
            if statistic is not None and moved is not None and moved.dtype != statistic.dtype:
                self._buffers[name] = statistic.to(moved.device)
        return self


class RunningValueNorm(ValueNorm):
    """The exact mean and (population) variance of all targets seen.

    Args:
        shape: see :class:`ValueNorm`.
        epsilon: see :class:`ValueNorm`.

    Chan et al., 1979, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (the merging rule).

    >>> norm = RunningValueNorm()
    >>> norm.update(torch.tensor([[1.0], [3.0]]))
    >>> norm.update(torch.tensor([[5.0], [7.0]]))
    >>> norm.moments()
    (tensor([4.], dtype=torch.float64), tensor([5.], dtype=torch.float64))
    >>> norm.denormalize(norm.normalize(torch.tensor([[9.0]])))
    tensor([[9.]])
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, shape: int = 1, *, epsilon: float = 1e-5) -> None:
        super().__init__(shape, epsilon=epsilon)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))

    def observe(self, number: Tensor, mean: Tensor, squares: Tensor) -> None:
        total = (self.count + number).clamp_min(1)
        change = mean - self.mean
        self.squares += squares + change.square() * (self.count * number / total)
        self.mean += change * (number / total)
        self.count += number

    def moments(self) -> tuple[Tensor, Tensor]:
        variance = self.squares / self.count.clamp_min(1)
        return self.mean.clone(), torch.where(self.count > 0, variance, torch.ones_like(variance))


class PopArtValueNorm(ValueNorm):
    r"""Exponential moving moments without a start-up bias; rescales the critic's last layer if it is given one.

    .. math::
        m \leftarrow \beta m + (1 - \beta) \bar{G}, \quad
        s \leftarrow \beta s + (1 - \beta) \overline{G^2}, \quad
        w \leftarrow \beta w + (1 - \beta), \qquad
        \mu = m / w, \quad v = s / w - \mu^2

    With ``layer`` each update rescales it, W <- W sigma / sigma', b <- (sigma b + mu - mu') / sigma', so that the
    denormalised outputs stay what they were. The optimiser's state is left alone. Do not update between a forward and
    its backward pass.

    Args:
        shape: see :class:`ValueNorm`.
        beta: decay per update, in [0, 1).
        epsilon: see :class:`ValueNorm`.
        layer: the critic's last layer, with ``shape`` outputs and a bias; None: nothing is rescaled. It stays the
            critic's: this module lists no parameters.

    Raises:
        SpecError: beta is outside [0, 1), or the layer has other outputs or no bias.

    van Hasselt et al., 2016, Learning values across many orders of magnitude, arXiv 1602.07714.

    >>> norm = PopArtValueNorm(beta=0.5)
    >>> norm.update(torch.tensor([[1.0], [3.0]]))
    >>> norm.moments()
    (tensor([2.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """

    first: Tensor
    second: Tensor
    weight: Tensor

    def __init__(
        self, shape: int = 1, *, beta: float = 0.99999, epsilon: float = 1e-5, layer: nn.Linear | None = None
    ) -> None:
        super().__init__(shape, epsilon=epsilon)
        if not 0.0 <= beta < 1.0:
            raise SpecError(f"beta lies in [0, 1); got {beta}")
        if layer is not None and (layer.out_features != shape or layer.bias is None):
            raise SpecError(
                f"PopArtValueNorm(shape={shape}) rescales a linear layer with {shape} outputs and a bias; got {layer}"
            )
        self.beta = beta
        # Not a submodule: it is the critic's, whose parameters would be listed twice.
        self.__dict__["layer"] = layer
        self.register_buffer("first", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("second", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    def observe(self, number: Tensor, mean: Tensor, squares: Tensor) -> None:
        before = self.mean_and_std()
        step = (1 - self.beta) * (number > 0).to(torch.float64)
        second = squares / number.clamp_min(1) + mean.square()
        self.first += step * (mean - self.first)
        self.second += step * (second - self.second)
        self.weight += step * (1 - self.weight)
        if self.__dict__["layer"] is not None:
            self._rescale(self.__dict__["layer"], *before)

    def moments(self) -> tuple[Tensor, Tensor]:
        seen = self.weight > 0
        weight = torch.where(seen, self.weight, torch.ones_like(self.weight))
        mean = self.first / weight
        variance = self.second / weight - mean.square()
        return mean, torch.where(seen, variance, torch.ones_like(variance))

    def _rescale(self, layer: nn.Linear, old_mean: Tensor, old_std: Tensor) -> None:
        mean, std = self.mean_and_std()
        layer.weight.mul_((old_std / std).unsqueeze(-1).to(layer.weight.dtype))
        bias = (layer.bias.to(torch.float64) * old_std + old_mean - mean) / std
        layer.bias.copy_(bias)
