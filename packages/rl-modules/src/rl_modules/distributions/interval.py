"""The affine map from (-1, 1) to the bounds of an action, prepared once."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Size, Tensor

__all__ = ["Interval"]

Bound = float | int | Tensor


class Interval:
    """Bounds ``low < high`` and the map ``a = center + half * t`` between ``t`` in [-1, 1] and ``a`` in [low, high].

    Args:
        low: lower bound, a number or a tensor that broadcasts to the action.
        high: upper bound, likewise.

    Raises:
        ValueError: if a lower bound is not below its upper bound, or a bound is not finite.
    """

    def __init__(self, low: Bound, high: Bound) -> None:
        self.low = torch.as_tensor(low, dtype=None if isinstance(low, Tensor) else torch.float64).detach()
        self.high = torch.as_tensor(high, dtype=None if isinstance(high, Tensor) else torch.float64).detach()
        if not bool((self.low < self.high).all() and self.low.isfinite().all() and self.high.isfinite().all()):
            raise ValueError(
                f"An action interval needs finite bounds with low < high; got low={low}, high={high}. "
                f"Use IndependentNormal for unbounded actions."
            )
        low64, high64 = torch.broadcast_tensors(self.low.double(), self.high.double())
        self._center, self._half = (low64 + high64) / 2, (high64 - low64) / 2
        self._maps: dict[tuple[torch.dtype, torch.device], AffineMap] = {}

    @classmethod
    def of(cls, low: Bound, high: Bound) -> Interval:
        """The interval, remembered where both bounds are numbers."""
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            return _of_numbers(float(low), float(high))
        return cls(low, high)

    def like(self, tensor: Tensor) -> AffineMap:
        """The map in the dtype and on the device of a tensor."""
        key = (tensor.dtype, tensor.device)
        found = self._maps.get(key)
        if found is None:
            with torch.inference_mode(False):  # the map outlives the call that made it
                found = self._maps[key] = AffineMap(self, torch.empty(0, dtype=tensor.dtype, device=tensor.device))
        return found


class AffineMap:
    """One interval in one dtype on one device.

    Its numbers are tensors without dims: torch wraps a Python number anew at each operation, which costs as much again.
    """

    def __init__(self, interval: Interval, tensor: Tensor) -> None:
        self.low, self.high = interval.low.to(tensor), interval.high.to(tensor)
        self.center, self.half = interval._center.to(tensor), interval._half.to(tensor)
        self.is_identity = bool((interval._center == 0).all() and (interval._half == 1).all())
        self._is_symmetric = bool((interval._center == 0).all())
        self._log_half = interval._half.log().to(tensor)
        self._constants: dict[tuple[Size, int, float], Tensor] = {}
        # Rounding may carry an end of the interval outside; then, and only then, each value is clamped.
        ends = torch.ones_like(self.center)
        self._rounds_outside = bool((self._scale(ends) > self.high).any() or (self._scale(-ends) < self.low).any())

    def _scale(self, unit: Tensor) -> Tensor:
        return unit * self.half if self._is_symmetric else torch.addcmul(self.center, unit, self.half)

    def from_unit(self, unit: Tensor) -> Tensor:
        """Values in [low, high] from values in [-1, 1]."""
        if self.is_identity:
            return unit
        value = self._scale(unit)
        return value.clamp(self.low, self.high) if self._rounds_outside else value

    def to_unit(self, value: Tensor) -> Tensor:
        """Values in [-1, 1], up to rounding, from values in [low, high]."""
        return value if self.is_identity else (value - self.center) / self.half

    def constant(self, shape: Size, event_dims: int, per_element: float) -> Tensor:
        """Sum of ``per_element - log half`` over the elements of one action.

        Args:
            shape: ``[*B, *event]``.
            event_dims: number of trailing dims of one action.
            per_element: a number.

        Returns:
            a tensor that broadcasts to ``[*B]``.
        """
        key = (shape, event_dims, per_element)
        found = self._constants.get(key)
        if found is None:
            if len(self._constants) >= 64:  # batch sizes may vary without end
                self._constants.clear()
            event = shape[len(shape) - event_dims :]
            lead = self._log_half.shape[: max(self._log_half.ndim - event_dims, 0)]
            with torch.inference_mode(False):
                elements = (per_element - self._log_half).expand((*lead, *event))
                found = elements.flatten(len(lead)).sum(-1) if event_dims else elements
            self._constants[key] = found
        return found


@lru_cache(maxsize=256)
def _of_numbers(low: float, high: float) -> Interval:
    return Interval(low, high)
