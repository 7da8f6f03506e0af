"""The scale of returns as a moving range between two percentiles, by which an actor's advantages are divided."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.losses.reduction import masked_rows

__all__ = ["PercentileValueNorm"]


class PercentileValueNorm(nn.Module):
    r"""An exponentially moving range of returns.

    .. math:: S = \max(m, \mathrm{Per}(R, 95) - \mathrm{Per}(R, 5)), \qquad
        \mathrm{normalize}(x) = x / S

    Large returns are scaled down, small ones (noise around zero of a sparse reward) are not scaled up. The two
    percentiles are the buffers ``low`` and ``high``, 0 before the first update.

    Args:
        shape: the values' components, the shape of their last dimensions.
        quantiles: the two shares of the values, in [0, 1], increasing.
        rate: how much a batch moves the percentiles, in (0, 1].
        min_scale: m, the smallest scale.
        center: subtract ``low`` before scaling.
        epsilon: the scale is at least this, also where min_scale is 0.
        device: of the buffers.

    Raises:
        SpecError: an option is not admitted.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 7, arXiv 2301.04104.

    >>> norm = PercentileValueNorm(rate=1.0)
    >>> norm.update(torch.arange(101.0).unsqueeze(-1))
    >>> norm.low, norm.high, norm.scale()
    (tensor([5.]), tensor([95.]), tensor([90.]))
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        *,
        shape: int | Sequence[int] = 1,
        quantiles: tuple[float, float] = (0.05, 0.95),
        rate: float = 0.01,
        min_scale: float = 1.0,
        center: bool = False,
        epsilon: float = 1e-5,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.shape = torch.Size((shape,) if isinstance(shape, int) else shape)
        if not 0 <= quantiles[0] < quantiles[1] <= 1:
            raise SpecError(f"quantiles are two increasing shares in [0, 1]; got {quantiles}")
        if not 0 < rate <= 1 or min_scale < 0 or epsilon <= 0:
            raise SpecError(
                f"rate is in (0, 1], min_scale >= 0, epsilon > 0; got {rate}, {min_scale}, {epsilon} of "
                f"{type(self).__name__}"
            )
        self.quantiles, self.rate, self.min_scale = (float(quantiles[0]), float(quantiles[1])), rate, min_scale
        self.center, self.epsilon = center, epsilon
        self.register_buffer("low", torch.zeros(self.shape, device=device))
        self.register_buffer("high", torch.zeros(self.shape, device=device))

    @torch.no_grad()
    def update(self, values: Tensor, mask: Tensor | None = None) -> None:
        """Move the percentiles towards those of a batch; a batch without a valid row changes nothing.

        Args:
            values: [*B, *shape].
            mask: bool [*B], True in rows that count.

        Raises:
            SpecError: the values' last dimensions are not ``shape``, or the mask does not fit.
        """
        self._check(values)
        rows = masked_rows(values.detach(), mask).reshape(-1, math.prod(self.shape)).to(self.low.dtype)
        if rows.shape[0] == 0:
            return
        # Sorting by hand: torch.quantile refuses more than 2^24 values.
        ordered = rows.sort(0).values
        for buffer, share in zip((self.low, self.high), self.quantiles, strict=True):
            place = share * (ordered.shape[0] - 1)
            below = min(int(place), ordered.shape[0] - 1)
            above = min(below + 1, ordered.shape[0] - 1)
            found = torch.lerp(ordered[below], ordered[above], place - below).reshape(self.shape)
            buffer.lerp_(found, self.rate)

    def scale(self) -> Tensor:
        """S [*shape]."""
        return (self.high - self.low).clamp_min(max(self.min_scale, self.epsilon))

    def normalize(self, values: Tensor) -> Tensor:
        """Values [*B, *shape] in units of the scale, less ``low`` where ``center``."""
        self._check(values)
        return (values - self.low if self.center else values) / self.scale()

    def denormalize(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`normalize`."""
        self._check(values)
        scaled = values * self.scale()
        return scaled + self.low if self.center else scaled

    def _check(self, values: Tensor) -> None:
        if values.shape[values.ndim - len(self.shape) :] != self.shape or values.ndim < len(self.shape):
            raise SpecError(
                f"{type(self).__name__}(shape={list(self.shape)}) takes [*B, *{list(self.shape)}]; got "
                f"{list(values.shape)}"
            )
