"""Squashes values into bounds, for deterministic policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rl_core.keys import as_keys
from rl_core.specs import Composite, TensorSpec
from rl_modules.distributions.interval import Bound, Interval
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.safe_module import Keys

__all__ = ["TanhModule"]


class TanhModule(PolicyModule):
    """Maps each input by tanh, or by a clamp, into [low, high].

    Args:
        in_keys: the values.
        out_keys: where the results go; the inputs are overwritten unless given.
        spec: spec of the outputs whose bounds are used: a leaf for all of them, or a Composite.
        low: lower bound, instead of a spec; -1 unless given.
        high: upper bound, instead of a spec; 1 unless given.
        clamp: clamp instead of tanh.

    Raises:
        ValueError: if both a spec and bounds are given, or a spec has no bounds for an output.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        *,
        spec: TensorSpec | None = None,
        low: Bound | None = None,
        high: Bound | None = None,
        clamp: bool = False,
    ) -> None:
        super().__init__()
        inputs = as_keys(in_keys)
        self._set_keys(inputs, inputs if out_keys is None else as_keys(out_keys))
        if len(self.in_keys) != len(self.out_keys):
            raise ValueError(f"TanhModule needs one out key for each in key; got {self.in_keys} and {self.out_keys}.")
        if spec is not None and (low is not None or high is not None):
            raise ValueError("TanhModule takes a spec or bounds, not both.")
        self.clamp = clamp
        if spec is None:
            interval = Interval.of(-1.0 if low is None else low, 1.0 if high is None else high)
            self._intervals: Sequence[Interval] = [interval] * len(self.out_keys)
        else:
            self._intervals = [
                _bounds(spec[key] if isinstance(spec, Composite) else spec, key) for key in self.out_keys
            ]

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        outputs = []
        for value, interval in zip(inputs, self._intervals, strict=True):
            bounds = interval.like(value)
            outputs.append(value.clamp(bounds.low, bounds.high) if self.clamp else bounds.from_unit(value.tanh()))
        return tuple(outputs)


def _bounds(spec: TensorSpec, key: Any) -> Interval:
    low, high = getattr(spec.space, "low", None), getattr(spec.space, "high", None)
    if low is None or high is None:
        raise ValueError(f"TanhModule needs bounds for {key!r}; its spec {type(spec).__name__} has none.")
    return Interval(low, high)
