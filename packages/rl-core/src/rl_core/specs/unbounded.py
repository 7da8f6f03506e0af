"""Unbounded: any number of a dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.boxes import ContinuousBox

__all__ = ["Unbounded", "draw_integers", "dtype_range"]


def dtype_range(dtype: torch.dtype) -> tuple[int, int] | tuple[float, float]:
    """The smallest and largest value of a dtype: infinities for floats.

    >>> dtype_range(torch.uint8), dtype_range(torch.float32)
    ((0, 255), (-inf, inf))
    """
    if dtype == torch.bool:
        return 0, 1
    if dtype.is_floating_point or dtype.is_complex:
        return float("-inf"), float("inf")
    info = torch.iinfo(dtype)
    return int(info.min), int(info.max)


class Unbounded(TensorSpec):
    """Any value of a dtype.

    Draws are standard normal (floats), uniform over the dtype's range (integers) or fair coins (bool).

    Args:
        shape: shape of a value.
        device: where values are made.
        dtype: defaults to torch's default dtype.

    Example:
        >>> Unbounded(3).rand((2,)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        shape: Shape = (1,),
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, dtype or torch.get_default_dtype(), device)

    def _config(self) -> dict[str, Any]:
        return {"shape": self.shape, "device": self.device, "dtype": self.dtype}

    @property
    def domain(self) -> str:  # type: ignore[override]
        """``continuous`` for floats, ``discrete`` otherwise."""
        assert self.dtype is not None
        return "continuous" if self.dtype.is_floating_point or self.dtype.is_complex else "discrete"

    @property
    def low(self) -> Tensor:
        """The smallest value of the dtype, of the spec's shape."""
        return self._filled(0)

    @property
    def high(self) -> Tensor:
        """The largest value of the dtype, of the spec's shape."""
        return self._filled(1)

    def _filled(self, side: int) -> Tensor:
        assert self.dtype is not None
        number = dtype_range(self.dtype)[side]
        return torch.full((), number, dtype=self.dtype, device=self.device).expand(self._concrete)

    @property
    def space(self) -> ContinuousBox:
        """The dtype's range."""
        return ContinuousBox(self.low, self.high)

    def _draw(self, shape: torch.Size) -> Tensor:
        dtype, device = self.dtype, self.device
        assert dtype is not None
        if dtype.is_floating_point or dtype.is_complex:
            # Sizes one by one: torch parses a torch.Size argument more slowly than it draws.
            return torch.randn(*(shape or ((),)), dtype=dtype, device=device)
        low, high = dtype_range(dtype)
        return draw_integers(shape, low, high, dtype, device)

    def _legal(self, val: Any, at: int, extra: int) -> bool:
        return True

    def _project(self, val: Tensor, at: int, extra: int) -> Tensor:
        return val.to(self.dtype)

    def cardinality(self) -> float | int:
        """Two per element for bool, infinity otherwise."""
        return 2 ** self._concrete.numel() if self.dtype == torch.bool else float("inf")

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """All values of bools, ``[cardinality, *shape]``."""
        if self.dtype != torch.bool:
            return super().enumerate(use_mask)
        coin = torch.tensor([False, True], device=self.device)
        return torch.cartesian_prod(*[coin] * self._concrete.numel()).reshape(-1, *self._concrete)


def draw_integers(
    shape: torch.Size, low: float, high: float, dtype: torch.dtype, device: torch.device | None
) -> Tensor:
    """Uniform integers from low to high, both included."""
    if high < 2**63 - 1:
        return torch.randint(int(low), int(high) + 1, shape, dtype=dtype, device=device)
    return torch.empty(shape, dtype=torch.int64, device=device).random_(int(low), None).to(dtype)
