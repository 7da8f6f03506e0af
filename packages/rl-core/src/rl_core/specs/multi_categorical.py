"""MultiCategorical: several choices side by side, written as their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.categorical import Categorical
from rl_core.specs.masks import kept_last, strip
from rl_core.specs.multi_choice import MultiChoice, as_nvec
from rl_core.specs.shape_ops import ShapeOp, as_size
from rl_core.specs.values import SMALL, concrete, located

if TYPE_CHECKING:
    from rl_core.specs.multi_one_hot import MultiOneHot

__all__ = ["MultiCategorical"]


class MultiCategorical(MultiChoice):
    """Numbers ``start ... start + nvec - 1``, element by element. Equal counts never mean a batch.

    Args:
        nvec: the numbers of categories, of one or more dimensions.
        shape: shape of a value, by default that of ``nvec``; must end in it.
        device: where values are made.
        dtype: of a value.
        mask: see :meth:`update_mask`.
        start: the first category, one number or one per element of ``nvec``.

    Example:
        >>> spec = MultiCategorical([3, 2])
        >>> spec.is_in(torch.tensor([2, 1])), spec.is_in(torch.tensor([1, 2]))
        (True, False)
    """

    def __init__(
        self,
        nvec: Any,
        shape: Shape | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.int64,
        mask: Any = None,
        start: Any = 0,
    ) -> None:
        counts = as_nvec(nvec, device, "MultiCategorical")
        size = counts.shape if shape is None else as_size(shape)
        k = counts.ndim
        if size[len(size) - k :] != counts.shape or len(size) < k:
            raise SpecError(f"MultiCategorical: the shape {list(size)} must end in that of nvec, {list(counts.shape)}.")
        super().__init__(size, dtype, device)
        self._set_parts(counts, start, mask, concrete(size[: len(size) - k]))
        self._first: list[int] = self.start.flatten().tolist()
        self._last: list[int] = (self.start + self.nvec - 1).flatten().tolist()

    def _apply(self, op: ShapeOp, n: int | None = None) -> Any:
        if op.shape(self.shape, self.ndim if n is None else n) == torch.Size([]) and self._mask is None:
            part = op.act(self._positions().expand(self._concrete), self.ndim)
            count, start = int(self.nvec.flatten()[part]), int(self.start.flatten()[part])
            return Categorical(count, device=self.device, dtype=self.dtype or torch.int64, start=start)
        return super()._apply(op, n)

    def _positions(self) -> Tensor:
        return torch.arange(self.nvec.numel(), device=self.device).reshape(self.nvec.shape)

    def _moved(self, op: ShapeOp, n: int) -> dict[str, Any]:
        changes = super()._moved(op, n)
        own, k = self._positions(), self.nvec.ndim
        moved = op.act(own.expand(self._concrete), n)
        mask = self._full_mask()
        if kept_last(moved, own):
            if mask is not None:
                assert self._mask is not None
                # The mask has no dimension for the parts: lend it one that does not change, and take it away again.
                lead, last = len(self._lead), mask.shape[len(self._lead) :]
                lent = mask[(slice(None),) * lead + (None,) * k].expand(*self._lead, *own.shape, *last)
                follow = op.act(lent, n)
                changes["mask"] = strip(follow[(slice(None),) * (moved.ndim - k) + (0,) * k], self._mask.ndim)
            return changes
        if mask is not None:
            raise SpecError(
                f"{op.name}: a masked MultiCategorical of shape {list(self.shape)} keeps its last {k} dimension(s), "
                f"the parts; change the dimensions before, or remove the mask first."
            )
        part = strip(moved, min(k, 1))
        return {**changes, "nvec": self.nvec.flatten()[part], "start": self.start.flatten()[part]}

    def _draw(self, shape: torch.Size) -> Tensor:
        index = self._draw_index(shape[: len(shape) - self.nvec.ndim])
        return self._native(index).to(self.dtype)

    def _legal(self, val: Tensor, at: int, extra: int) -> bool:
        if self._mask is None and val.numel() == len(self._parts.counts) <= SMALL:
            numbers = zip(val.flatten().tolist(), self._first, self._last, strict=True)
            return all(first <= number <= last and number == int(number) for number, first, last in numbers)
        if val.is_floating_point() and not torch.equal(val, val.round()):
            return False
        return not bool(self._wrong_rows(self._native_index(val.long()), at, extra).any())

    def _project(self, val: Tensor, at: int, extra: int) -> Tensor:
        index = self._native_index(val.round().nan_to_num() if val.is_floating_point() else val.long())
        index = torch.minimum(index.clamp(min=0), self._parts.limits.to(index.device) - 1).long()
        mask = self._aligned_mask(index.shape[:-1], at, extra, index.device)
        return self._native(self._parts.nearest(index, mask)).to(self.dtype)

    def _why_not(self, val: Tensor, at: int, extra: int) -> str:
        if val.is_floating_point() and not torch.equal(val, val.round()):
            position = (val != val.round()).nonzero()[0].tolist()
            return f"expected whole numbers, found {val[tuple(position)].item()}{located(position)}."
        return self._why_row(self._native_index(val.long()), at, extra)

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """All legal values, ``[cardinality, *shape]``."""
        return self._native(self._enumerate_index(use_mask)).to(self.dtype)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value itself."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value as one-hot vectors side by side, bool ``[*, sum(nvec)]``."""
        if safe or safe is None:
            self.assert_is_in(val)
        return self._parts.one_hot(self._native_index(val.long()))

    def to_categorical_spec(self) -> MultiCategorical:
        """The spec itself."""
        return self

    def to_one_hot_spec(self) -> MultiOneHot:
        """The same choices written as one-hot vectors."""
        from rl_core.specs.multi_one_hot import MultiOneHot

        shape = (*self.shape[: self.ndim - self.nvec.ndim], self._parts.total)
        spec = MultiOneHot(self.nvec, shape=shape, device=self.device, mask=self._mask, start=self.start)
        spec.batch_ndim = min(self.batch_ndim, len(shape))
        return spec

    def split(self) -> list[TensorSpec]:
        """One Categorical per part, without the mask."""
        lead = self.shape[: self.ndim - self.nvec.ndim]
        pairs = zip(self.nvec.flatten().tolist(), self.start.flatten().tolist(), strict=True)
        return [Categorical(n, lead, self.device, self.dtype or torch.int64, start=start) for n, start in pairs]
