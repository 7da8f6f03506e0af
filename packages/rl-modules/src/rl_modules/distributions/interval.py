"""The affine map from (-1, 1) to the bounds of an action, prepared once."""

from __future__ import annotations

import math
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
        numbers = None if isinstance(low, Tensor) or isinstance(high, Tensor) else (float(low), float(high))
        self._numbers = numbers
        self.low = torch.as_tensor(low, dtype=None if isinstance(low, Tensor) else torch.float64).detach()
        self.high = torch.as_tensor(high, dtype=None if isinstance(high, Tensor) else torch.float64).detach()
        self._traced = torch.compiler.is_compiling()  # made within compiled code, which cannot branch on tensors
        if numbers is not None:
            fit = -math.inf < numbers[0] < numbers[1] < math.inf
        else:
            fit = self._traced or bool(
                (self.low < self.high).all() and self.low.isfinite().all() and self.high.isfinite().all()
            )
        if not fit:
            raise ValueError(
                f"An action interval needs finite bounds with low < high; got low={low}, high={high}. "
                f"Use IndependentNormal for unbounded actions."
            )
        self._maps: dict[tuple[torch.dtype, torch.device], AffineMap] = {}

    @classmethod
    def of(cls, low: Bound, high: Bound) -> Interval:
        """The interval, remembered where both bounds are numbers."""
        if isinstance(low, Tensor) or isinstance(high, Tensor) or torch.compiler.is_compiling():
            return cls(low, high)
        return _of_numbers(float(low), float(high))

    def like(self, tensor: Tensor) -> AffineMap:
        """The map in the dtype and on the device of a tensor."""
        key = (tensor.dtype, tensor.device)
        found = self._maps.get(key)
        if found is not None:
            return found
        if not self._traced:
            constants = self._constants(*key)
        elif self._numbers is not None:
            constants = _constants_of_numbers(*self._numbers, *key)
        else:
            constants = _Constants(self.low, self.high, *key, branches=False)
        made = AffineMap(constants)
        if not torch.compiler.is_compiling():
            self._maps[key] = made
        return made

    @torch.compiler.assume_constant_result  # computed while a compiler traces the call, not in what it compiles
    def _constants(self, dtype: torch.dtype, device: torch.device) -> _Constants:
        with torch.inference_mode(False):  # they outlive the call that made them
            return _Constants(self.low, self.high, dtype, device)


class _Constants:
    """The tensors and flags of one interval in one dtype on one device.

    Tensors have a leading dim of 1: the compiler takes those without dims for numbers, and guards names it has not got.

    Args:
        low: lower bound.
        high: upper bound.
        dtype: of the values.
        device: of the values.
        branches: whether the flags may be read off the bounds; they are on the safe side otherwise.
    """

    def __init__(
        self, low: Tensor, high: Tensor, dtype: torch.dtype, device: torch.device, *, branches: bool = True
    ) -> None:
        low64, high64 = torch.broadcast_tensors(low.double(), high.double())
        center, half = (low64 + high64) / 2, (high64 - low64) / 2
        values = [value.to(device, dtype).unsqueeze(0) for value in (low, high, center, half, half.log())]
        self.low, self.high, self.center, self.half, self.log_half = values
        self.is_symmetric, self.is_identity, self.rounds_outside = False, False, True
        if branches:
            self.is_symmetric = bool((center == 0).all())
            self.is_identity = self.is_symmetric and bool((half == 1).all())
            # Rounding may carry an end of the interval outside; then, and only then, each value is clamped.
            above, below = torch.add(self.center, self.half), torch.sub(self.center, self.half)
            self.rounds_outside = bool((above > self.high).any() or (below < self.low).any())


class AffineMap:
    """One interval in one dtype on one device.

    Its numbers are tensors without dims: torch wraps a Python number anew at each operation, which costs as much again.
    """

    def __init__(self, constants: _Constants) -> None:
        self.low, self.high = constants.low.squeeze(0), constants.high.squeeze(0)
        self.center, self.half = constants.center.squeeze(0), constants.half.squeeze(0)
        self.is_identity = constants.is_identity
        self._is_symmetric, self._rounds_outside = constants.is_symmetric, constants.rounds_outside
        self._log_half = constants.log_half.squeeze(0)
        self._sums: dict[tuple[Size, int, float], Tensor] = {}

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
        if torch.compiler.is_compiling():
            return self._sum(shape, event_dims, per_element)
        key = (shape, event_dims, per_element)
        found = self._sums.get(key)
        if found is None:
            if len(self._sums) >= 64:  # batch sizes may vary without end
                self._sums.clear()
            with torch.inference_mode(False):
                found = self._sums[key] = self._sum(shape, event_dims, per_element)
        return found

    def _sum(self, shape: Size, event_dims: int, per_element: float) -> Tensor:
        event = shape[len(shape) - event_dims :]
        lead = self._log_half.shape[: max(self._log_half.ndim - event_dims, 0)]
        elements = (per_element - self._log_half).expand((*lead, *event))
        return elements.flatten(len(lead)).sum(-1) if event_dims else elements


@lru_cache(maxsize=256)
def _of_numbers(low: float, high: float) -> Interval:
    return Interval(low, high)


@torch.compiler.assume_constant_result
def _constants_of_numbers(low: float, high: float, dtype: torch.dtype, device: torch.device) -> _Constants:
    with torch.inference_mode(False):
        low64, high64 = torch.tensor([low, high], dtype=torch.float64).unbind()
        return _Constants(low64, high64, dtype, device)
