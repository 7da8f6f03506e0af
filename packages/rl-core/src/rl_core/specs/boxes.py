"""The ``spec.space`` of each kind: what values a spec admits, without shape operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

__all__ = ["BinaryBox", "Box", "BoxList", "CategoricalBox", "ContinuousBox"]


@dataclass(frozen=True, eq=False)
class Box:
    """Base of all spaces."""


@dataclass(frozen=True, eq=False)
class ContinuousBox(Box):
    """Numbers between ``low`` and ``high`` (inclusive), both of the spec's shape."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class CategoricalBox(Box):
    """``n`` categories, the first of which is called ``start``."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class BinaryBox(Box):
    """``n`` bits."""

    n: int


@dataclass(frozen=True)
class BoxList(Box):
    """Several boxes side by side."""

    boxes: tuple[Box, ...]

    def __iter__(self) -> Iterator[Box]:
        """The boxes in order."""
        return iter(self.boxes)

    def __len__(self) -> int:
        """The number of boxes."""
        return len(self.boxes)

    def __getitem__(self, position: int) -> Box:
        """One box."""
        return self.boxes[position]
