"""Bounded: numbers between two bounds, both included."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.boxes import ContinuousBox
from rl_core.specs.shape_ops import ShapeOp, as_size
from rl_core.specs.unbounded import draw_integers, dtype_range
from rl_core.specs.values import SMALL, align, as_tensor, located, ordered

__all__ = ["Bounded", "cartesian"]


class Bounded(TensorSpec):
    """A box ``[low, high]``; integers may take the value ``high``.

    Draws are uniform; an infinite side is drawn beyond the finite one by the size of a standard normal. ``project``
    clamps, and keeps NaN in floats, so that it is seen.

    Args:
        low: lower bound, a number or an array that broadcasts to the shape; None: none.
        high: upper bound, likewise.
        shape: shape of a value; by default that of the bounds.
        device: where values are made.
        dtype: by default that of array bounds, else torch's default dtype.
        domain: ``"continuous"`` or ``"discrete"``, by default as the dtype.

    Example:
        >>> spec = Bounded(low=-1, high=1, shape=(2,))
        >>> spec.project(torch.tensor([3.0, 0.5]))
        tensor([1.0000, 0.5000])
    """

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        shape: Shape | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        domain: str | None = None,
    ) -> None:
        arrays = [b for b in (low, high) if hasattr(b, "dtype")]
        if dtype is None:
            dtype = as_tensor(arrays[0], None, None).dtype if arrays else torch.get_default_dtype()
        if device is None:
            device = next((b.device for b in arrays if isinstance(b, Tensor)), None)
        self._low = _bound(low, 0, dtype, device)
        self._high = _bound(high, 1, dtype, device)
        size = torch.broadcast_shapes(self._low.shape, self._high.shape) if shape is None else as_size(shape)
        super().__init__(size, dtype, device)
        self._low, self._high = self._compact(self._low), self._compact(self._high)
        if bool((ordered(self._low) > ordered(self._high)).any()):
            raise SpecError(f"Bounded: low {self._low.tolist()} lies above high {self._high.tolist()}.")
        if domain not in (None, "continuous", "discrete"):
            raise SpecError(f'Bounded: domain is "continuous" or "discrete", not {domain!r}.')
        self._domain = domain
        self._prepare()

    def _compact(self, bound: Tensor) -> Tensor:
        """A bound without dimensions if it is the same everywhere, else of the full shape."""
        try:
            full = bound.expand(self._concrete)
        except RuntimeError as error:
            raise SpecError(
                f"Bounded: a bound of shape {list(bound.shape)} does not broadcast to the shape {list(self.shape)}."
            ) from error
        if bound.ndim == 0:
            return bound
        if bound.numel() and bool((bound == bound.reshape(-1)[0]).all()):
            return bound.reshape(-1)[0].clone()
        return full

    def _prepare(self) -> None:
        """What draws and checks need, decided once."""
        assert self.dtype is not None
        self._is_float = self.dtype.is_floating_point
        self._uniform = self._low.ndim == 0 and self._high.ndim == 0
        self._lo: float = self._low.item() if self._uniform else 0
        self._hi: float = self._high.item() if self._uniform else 0
        finite = not self._is_float or bool(torch.isfinite(self._high - self._low).all())
        self._lerp = self._is_float and finite
        # uniform_ computes x * (high - low) + low, x < 1: never above high where the difference is not rounded.
        self._plain = (
            self._uniform
            and self._lerp
            and Fraction(self._hi) - Fraction(self._lo) == Fraction((self._high - self._low).item())
        )

    def _config(self) -> dict[str, Any]:
        return {
            "low": self._low,
            "high": self._high,
            "shape": self.shape,
            "device": self.device,
            "dtype": self.dtype,
            "domain": self._domain,
        }

    @property
    def domain(self) -> str:  # type: ignore[override]
        """``continuous`` or ``discrete``."""
        return self._domain or ("continuous" if self._is_float else "discrete")

    @property
    def low(self) -> Tensor:
        """The lower bounds, of the spec's shape."""
        return self._low.expand(self._concrete)

    @property
    def high(self) -> Tensor:
        """The upper bounds, of the spec's shape."""
        return self._high.expand(self._concrete)

    @property
    def space(self) -> ContinuousBox:
        """The bounds."""
        return ContinuousBox(self.low, self.high)

    def _moved(self, op: ShapeOp, n: int) -> dict[str, Any]:
        bounds = {"low": self._low, "high": self._high}
        moved = {name: op.act(bound, n) if bound.ndim else bound for name, bound in bounds.items()}
        return {"shape": op.shape(self.shape, n), **moved}

    def _draw(self, shape: torch.Size) -> Tensor:
        dtype, device = self.dtype, self.device
        assert dtype is not None
        if self._plain:
            # Sizes one by one: torch parses a torch.Size argument more slowly than it draws.
            return self._low.new_empty(*(shape or ((),))).uniform_(self._lo, self._hi)
        if self._lerp:
            # lerp never leaves [low, high], whatever it rounds.
            return torch.lerp(self._low, self._high, torch.rand(*(shape or ((),)), dtype=dtype, device=device))
        if self._is_float:
            return self._draw_unbounded(shape)
        if self._uniform:
            return draw_integers(shape, self._lo, self._hi, dtype, device)
        low, high = self._low.long(), self._high.long()
        width = high - low + 1  # 0 or less when it overflows
        number = torch.empty(shape, dtype=torch.int64, device=device).random_(-(2**63), None)
        inside = low + torch.remainder(number, width.clamp(min=1))
        return torch.where(width > 0, inside, number.clamp(low, high)).to(dtype)

    def _draw_unbounded(self, shape: torch.Size) -> Tensor:
        """Floats where some width is infinite or overflows."""
        normal = torch.randn(shape, dtype=self.dtype, device=self.device)
        part = torch.rand(shape, dtype=self.dtype, device=self.device)
        low, high = self._low, self._high
        no_low, no_high = low.isinf(), high.isinf()
        between = torch.where(no_low | no_high, normal, low * (1 - part) + high * part)
        one_sided = torch.where(no_high, low + normal.abs(), high - normal.abs())
        return torch.where(no_low ^ no_high, one_sided, between).clamp(low, high)

    def _legal(self, val: Tensor, at: int, extra: int) -> bool:
        if not self._uniform:
            bounds = self._aligned(val, at, extra)
            val = ordered(val)
            clamped = val.clamp(*bounds)
            return torch.equal(clamped, val.expand(clamped.shape))
        if val.numel() <= SMALL:
            low, high = self._lo, self._hi
            return all(low <= number <= high for number in val.flatten().tolist())
        least, most = torch.aminmax(ordered(val))
        return bool(least.item() >= self._lo and most.item() <= self._hi)

    def _aligned(self, val: Tensor, at: int, extra: int) -> tuple[Tensor, Tensor]:
        low, high = (align(bound, at, extra) if bound.ndim else bound for bound in (self._low, self._high))
        return ordered(low).to(val.device), ordered(high).to(val.device)

    def _project(self, val: Tensor, at: int, extra: int) -> Tensor:
        low, high = self._aligned(val, at, extra)
        if val.is_floating_point() and not self._is_float:
            number = val.double().round()
            # Beyond high the cast to int64 may overflow; below low the clamp mends it.
            val = torch.where(number >= high.double(), high.long(), number.nan_to_num().long())
        # Clamp before the cast where the value's dtype is the wider one.
        val = ordered(val)
        wide = torch.promote_types(val.dtype, low.dtype)
        return val.to(wide).clamp(low.to(wide), high.to(wide)).to(self.dtype)

    def _why_not(self, val: Tensor, at: int, extra: int) -> str:
        val, low, high = torch.broadcast_tensors(ordered(val), *self._aligned(val, at, extra))
        position = tuple((~((val >= low) & (val <= high))).nonzero()[0].tolist())
        return (
            f"expected values in [{low[position].item()}, {high[position].item()}], "
            f"found {val[position].item()}{located(position)}."
        )

    def cardinality(self) -> float | int:
        """The number of integer points; infinity for floats."""
        if self._is_float:
            return float("inf")
        lows, highs = self.low.flatten().tolist(), self.high.flatten().tolist()
        return math.prod(int(high) - int(low) + 1 for low, high in zip(lows, highs, strict=True))

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """All integer points, ``[cardinality, *shape]``."""
        if self._is_float:
            return super().enumerate(use_mask)
        lows, highs = self.low.flatten().tolist(), self.high.flatten().tolist()
        ranges = [torch.arange(int(lo), int(hi) + 1, device=self.device) for lo, hi in zip(lows, highs, strict=True)]
        return cartesian(ranges, self._concrete).to(self.dtype)


def cartesian(ranges: list[Tensor], shape: torch.Size) -> Tensor:
    """Every choice of one element per range, each of the given shape: ``[product, *shape]``."""
    grids = torch.meshgrid(*ranges, indexing="ij")
    return torch.stack([grid.reshape(-1) for grid in grids], -1).reshape(-1, *shape)


def _bound(number: Any, side: int, dtype: torch.dtype, device: Any) -> Tensor:
    limits = dtype_range(dtype)
    if number is None:
        number = limits[side]
    bound = as_tensor(number, torch.float64 if isinstance(number, float) else None, device)  # not torch's default dtype
    if bound.is_floating_point() and bool(bound.isnan().any()):
        raise SpecError("Bounded: a bound is NaN.")
    if bound.dtype != dtype and not dtype.is_floating_point:
        # Integers inside real bounds; infinities become the dtype's ends.
        real = bound.double()
        real = real.ceil() if side == 0 else real.floor()
        inside = (real > limits[0]) & (real < limits[1])
        ends = torch.where(real <= limits[0], limits[0], limits[1])
        bound = torch.where(inside, torch.where(inside, real, 0.0).long() if bound.is_floating_point() else bound, ends)
    return bound.to(dtype=dtype, device=device)
