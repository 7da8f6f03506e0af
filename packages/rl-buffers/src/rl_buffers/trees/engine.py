"""What a priority tree does, whoever does it: the contract of the C++ kernels and their twin, and its errors."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rl_core.errors import NativeError, ReplayBufferError

__all__ = ["Draw", "Engine", "TreeStats", "lock_error", "nothing_to_draw", "priority_error", "write_slot_error"]


class TreeStats(NamedTuple):
    """Sum, smallest above zero, largest and largest ever stored priority (0 where there is none), and live slots."""

    total: float
    smallest: float
    largest: float
    largest_ever: float
    live: int


class Draw(NamedTuple):
    """Drawn slots, int64 ``[B]``, their weights, ``[B]``, and the generations of their rows, int64 ``[B]``."""

    slots: Tensor
    weight: Tensor
    generation: Tensor


class Engine(Protocol):
    """Works on the memory of a tree (see :mod:`rl_buffers.trees.layout`); each call is one locked step."""

    def write(self, memory: Tensor, index: Tensor, alpha: float, eps: float, within: bool) -> None:
        """Give newly written rows the largest live priority and a new generation."""
        ...

    def update(
        self, memory: Tensor, index: Tensor, raw: Tensor, generation: Tensor | None, alpha: float, eps: float
    ) -> int:
        """Set priorities ``(raw + eps)^alpha``; returns how many rows were set."""
        ...

    def sample(self, memory: Tensor, n: int, seed: int, stratified: bool, beta: float, dtype: torch.dtype) -> Draw:
        """Draw `n` slots in proportion to their priorities."""
        ...

    def stats(self, memory: Tensor) -> TreeStats:
        """Sums and extremes."""
        ...

    def read(self, memory: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Copies of the stored priorities and generations of the first `n` live slots."""
        ...

    def clear(self, memory: Tensor) -> None:
        """Forget all rows but not their generations."""
        ...

    def load(self, memory: Tensor, priority: Tensor, generation: Tensor, largest_ever: float) -> None:
        """Replace all rows."""
        ...


def priority_error(value: float, position: int, slot: int) -> ReplayBufferError:
    """The error for a priority that is not a finite number >= 0."""
    cure = (
        "pass magnitudes, such as td_error.abs()"
        if value < 0 and value != float("-inf")
        else "the loss that made it has diverged or divided by zero"
    )
    return ReplayBufferError(
        f"priority {value} (position {position}, slot {slot}) is not a finite number >= 0: {cure}. "
        "No priority of this call was set."
    )


def write_slot_error(slot: int, position: int, capacity: int) -> ReplayBufferError:
    """The error for a written slot that the tree has no room for."""
    return ReplayBufferError(f"slot {slot} (position {position} of the index) is outside of 0 to {capacity - 1}")


def nothing_to_draw(live: int) -> ReplayBufferError:
    """The error of a draw without any priority above zero."""
    if live == 0:
        return ReplayBufferError("the storage is empty: add or extend before sampling")
    return ReplayBufferError(
        f"none of the {live} rows has a priority above zero: update_priority with larger values, or use eps > 0"
    )


def lock_error() -> NativeError:
    """The error where the lock of a shared tree does not become free."""
    return NativeError(
        "the priorities of this buffer are locked by another process for a minute: it is stopped (by a debugger?), or "
        "was killed and its process id was given to another program. End it, then make the buffer anew."
    )
