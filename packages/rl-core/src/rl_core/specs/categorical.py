"""Categorical: one of ``n`` categories, written as its number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_core.specs.base import Shape
from rl_core.specs.masks import strip
from rl_core.specs.shape_ops import ShapeOp
from rl_core.specs.single_choice import SingleChoice
from rl_core.specs.values import SMALL, located, ordered

if TYPE_CHECKING:
    from rl_core.specs.one_hot import OneHot

__all__ = ["Categorical"]


class Categorical(SingleChoice):
    """The numbers ``start ... start + n - 1``.

    Args:
        n: how many categories; -1 if not known.
        shape: shape of a value, by default a single number.
        device: where values are made.
        dtype: of a value.
        mask: which categories are legal, bool ``[*, n]`` that broadcasts to ``[*shape, n]``; ``mask[..., i]`` is about
            the number ``start + i``.
        start: the first category.

    Example:
        >>> spec = Categorical(3, start=2)
        >>> spec.zero(), spec.is_in(torch.tensor(4)), spec.is_in(torch.tensor(1))
        (tensor(2), True, False)
    """

    def __init__(
        self,
        n: int,
        shape: Shape | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.long,
        mask: Any = None,
        start: int = 0,
    ) -> None:
        super().__init__(shape, dtype, device)
        self._set_categories(n, start, mask, self._concrete)

    def _moved(self, op: ShapeOp, n: int) -> dict[str, Any]:
        changes = super()._moved(op, n)
        if self._mask is not None:
            full = self._mask.expand(*self._lead, self.n)
            changes["mask"] = strip(op.act(full, n), self._mask.ndim)
        return changes

    def _draw(self, shape: torch.Size) -> Tensor:
        if self._mask is None:
            end = self.start + (self.n if self.n > 0 else self._countable())
            return torch.randint(self.start, end, shape, dtype=self.dtype, device=self.device)
        return (self._draw_index(shape) + self.start).to(self.dtype)

    def _legal(self, val: Tensor, at: int, extra: int) -> bool:
        end = self.start + self.n if self.n > 0 else math.inf
        if val.numel() <= SMALL:
            inside = all(self.start <= number < end and number == int(number) for number in val.flatten().tolist())
            return inside and (self._mask is None or self._allowed(val.long() - self.start, at, extra))
        if val.is_floating_point() and not torch.equal(val, val.round()):
            return False
        least, most = torch.aminmax(ordered(val))
        if least.item() < self.start or most.item() >= end:
            return False
        return self._mask is None or self._allowed(val.long() - self.start, at, extra)

    def _project(self, val: Tensor, at: int, extra: int) -> Tensor:
        index = (val.round() if val.is_floating_point() else val.long()) - self.start
        index = index.nan_to_num().clamp(min=0, max=self.n - 1 if self.n > 0 else None).long()
        mask = self._aligned_mask(index.shape, at, extra, index.device)
        if mask is not None:
            distance = (torch.arange(self.n, device=index.device) - index.unsqueeze(-1)).abs()
            index = distance.masked_fill(~mask, self.n).argmin(-1)
        return (index + self.start).to(self.dtype)

    def _why_not(self, val: Tensor, at: int, extra: int) -> str:
        number = val.double()
        outside = (number < self.start) | (number != number.round())
        if self.n > 0:
            outside |= number >= self.start + self.n
        forbidden = outside
        mask = self._aligned_mask(val.shape, at, extra, val.device)
        if mask is not None and not bool(outside.any()):
            forbidden = ~mask.gather(-1, (val.long() - self.start).expand(mask.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        position = forbidden.nonzero()[0].tolist()
        what = f"whole numbers from {self.start} to {self.start + self.n - 1 if self.n > 0 else 'infinity'}"
        why = "" if bool(outside.any()) else ", which the mask forbids"
        return f"expected {what}, found {val.expand(forbidden.shape)[tuple(position)].item()}{located(position)}{why}."

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """All legal values, ``[cardinality, *shape]``."""
        return (self._enumerate_index(use_mask) + self.start).to(self.dtype)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value itself."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value as a boolean one-hot vector ``[*, n]``; the offset ``start`` is subtracted."""
        if safe or safe is None:
            self.assert_is_in(val)
        return (val - self.start).unsqueeze(-1) == torch.arange(self.n, device=val.device)

    def to_categorical_spec(self) -> Categorical:
        """The spec itself."""
        return self

    def to_one_hot_spec(self) -> OneHot:
        """The same choice written as a one-hot vector."""
        from rl_core.specs.one_hot import OneHot

        shape = (*self.shape, self.n)
        spec = OneHot(self.n, shape=shape, device=self.device, mask=self._mask, start=self.start)
        spec.batch_ndim = self.batch_ndim
        return spec

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """The entries of ``tensor_to_index [*, n]`` at the categories ``index [*]``."""
        return tensor_to_index.gather(-1, (index - self.start).long().unsqueeze(-1)).squeeze(-1)
