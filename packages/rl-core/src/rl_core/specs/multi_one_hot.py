"""MultiOneHot: several choices side by side, written as one-hot vectors in one last dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import Shape
from rl_core.specs.masks import kept_last, strip
from rl_core.specs.multi_choice import MultiChoice, as_nvec
from rl_core.specs.shape_ops import ShapeOp, as_size
from rl_core.specs.values import as_tensor, concrete, located

if TYPE_CHECKING:
    from rl_core.specs.multi_categorical import MultiCategorical

__all__ = ["MultiOneHot"]


class MultiOneHot(MultiChoice):
    """One-hot vectors of lengths ``nvec``, concatenated.

    Args:
        nvec: the numbers of categories, of one or more dimensions; native values have their shape.
        shape: shape of a value, by default ``(sum(nvec),)``; the last dimension must be the sum.
        device: where values are made.
        dtype: of a value.
        mask: see :meth:`update_mask`.
        start: the native number of the first category, one or one per element of ``nvec``.

    Example:
        >>> MultiOneHot([3, 2]).encode([2, 0]).int()
        tensor([0, 0, 1, 1, 0], dtype=torch.int32)
    """

    def __init__(
        self,
        nvec: Any,
        shape: Shape | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.bool,
        mask: Any = None,
        start: Any = 0,
    ) -> None:
        counts = as_nvec(nvec, device, "MultiOneHot")
        total = int(counts.sum())
        size = torch.Size([total]) if shape is None else as_size(shape)
        if not size or size[-1] != total:
            raise SpecError(
                f"MultiOneHot: the last dimension holds the encodings and must be sum(nvec)={total}; "
                f"the shape is {list(size)}."
            )
        super().__init__(size, dtype, device)
        self._set_parts(counts, start, mask, concrete(size[:-1]))

    def _moved(self, op: ShapeOp, n: int) -> dict[str, Any]:
        changes = super()._moved(op, n)
        last = torch.arange(self._parts.total)
        moved = op.act(last.expand(self._concrete), n)
        if not kept_last(moved, last):
            raise SpecError(
                f"{op.name}: the last dimension of a MultiOneHot of shape {list(self.shape)} holds the encodings and "
                "cannot be changed; change the dimensions before it, or use to_categorical_spec() first."
            )
        mask = self._full_mask()
        if mask is not None:
            assert self._mask is not None
            lead = len(self._lead)
            lent = mask[(slice(None),) * lead + (None,)].expand(*self._lead, self._parts.total, *mask.shape[lead:])
            follow = op.act(lent, n)
            changes["mask"] = strip(follow.select(moved.ndim - 1, 0), self._mask.ndim)
        return changes

    def _draw(self, shape: torch.Size) -> Tensor:
        return self._parts.one_hot(self._draw_index(shape[:-1])).to(self.dtype)

    def _legal(self, val: Tensor, at: int, extra: int) -> bool:
        if not self._is_encoded(val):
            return False
        return self._mask is None or not bool(self._wrong_rows(self._parts.from_one_hot(val), at, extra).any())

    def _is_encoded(self, val: Tensor) -> bool:
        if val.dtype != torch.bool and not bool(((val == 0) | (val == 1)).all()):
            return False
        return all(bool((part.sum(-1) == 1).all()) for part in val.split(self._parts.counts, -1))

    def _project(self, val: Tensor, at: int, extra: int) -> Tensor:
        scores = val if val.is_floating_point() else val.long()
        mask = self._aligned_mask(scores.shape[:-1], at, extra, scores.device)
        return self._parts.one_hot(self._parts.best(scores, mask)).to(self.dtype)

    def _why_not(self, val: Tensor, at: int, extra: int) -> str:
        hot = val == 1
        counts = torch.stack([part.sum(-1) for part in hot.split(self._parts.counts, -1)], -1)
        wrong = (counts != 1).any(-1) | ((val != 0) & ~hot).any(-1)
        if bool(wrong.any()):
            position = wrong.nonzero()[0].tolist()
            return (
                f"expected one 1 and otherwise 0 in each part of lengths {list(self._parts.counts)}, found "
                f"{val[tuple(position)].tolist()}{located(position)}."
            )
        return self._why_row(self._parts.from_one_hot(val), at, extra)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Native numbers ``[*, *nvec.shape]`` as one-hot vectors; what is encoded already is returned.

        Raises:
            SpecError: if a number is not in ``start ... start + nvec - 1``.
        """
        tensor = as_tensor(val, None, None if ignore_device else self.device)
        if tensor.dtype == self.dtype and tensor.ndim and next(self._places(tensor.shape), None):
            return tensor
        index = self._native_index(tensor.long())
        if not bool(self._parts.in_range(index).all()):
            raise SpecError(
                f"MultiOneHot expected numbers from {self.start.tolist()} to {(self.start + self.nvec - 1).tolist()}, "
                f"found {tensor.tolist()}."
            )
        return self._fitted(self._parts.one_hot(index).to(self.dtype))

    def to_numpy(self, val: Tensor) -> Any:
        """The native numbers, ``[*, *nvec.shape]``."""
        return self.to_categorical(val).cpu().numpy()

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """All legal values, ``[cardinality, *shape]``."""
        return self._parts.one_hot(self._enumerate_index(use_mask)).to(self.dtype)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The native numbers, int64 ``[*, *nvec.shape]``."""
        if safe:
            self.assert_is_in(val)
        return self._native(self._parts.from_one_hot(val))

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value itself."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> MultiCategorical:
        """The same choices written as numbers."""
        from rl_core.specs.multi_categorical import MultiCategorical

        shape = (*self.shape[:-1], *self.nvec.shape)
        spec = MultiCategorical(self.nvec, shape=shape, device=self.device, mask=self._mask, start=self.start)
        spec.batch_ndim = self.batch_ndim
        return spec

    def to_one_hot_spec(self) -> MultiOneHot:
        """The spec itself."""
        return self
