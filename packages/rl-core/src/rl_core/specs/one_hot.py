"""OneHot: one of ``n`` categories, written as a vector with a single 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import Shape
from rl_core.specs.masks import fill_forbidden, kept_last, strip
from rl_core.specs.shape_ops import ShapeOp, as_size
from rl_core.specs.single_choice import SingleChoice
from rl_core.specs.values import SMALL, as_tensor, concrete, located

if TYPE_CHECKING:
    from rl_core.specs.categorical import Categorical

__all__ = ["OneHot"]


class OneHot(SingleChoice):
    """One-hot vectors of length ``n`` in the last dimension.

    Args:
        n: how many categories.
        shape: shape of a value, by default ``(n,)``; the last dimension must be ``n``.
        device: where values are made.
        dtype: of a value.
        mask: which categories are legal, bool ``[*, n]`` that broadcasts to the shape.
        start: the native number of the first category, as ``encode`` and ``to_numpy`` know it.

    Example:
        >>> spec = OneHot(3, start=2)
        >>> spec.encode(4), spec.to_numpy(spec.encode(4)).item()
        (tensor([False, False,  True]), 4)
    """

    def __init__(
        self,
        n: int,
        shape: Shape | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.bool,
        mask: Any = None,
        start: int = 0,
    ) -> None:
        size = torch.Size([n]) if shape is None else as_size(shape)
        if not size or size[-1] != n or n < 1:
            raise SpecError(
                f"OneHot: the last dimension holds the encoding and must be n={n}; the shape is {list(size)}."
            )
        super().__init__(size, dtype, device)
        self._set_categories(n, start, mask, concrete(size[:-1]))
        self._positions = torch.arange(n, device=self.device)

    def _moved(self, op: ShapeOp, n: int) -> dict[str, Any]:
        if n == self.ndim:
            last = torch.arange(self.n)
            op.shape(self.shape, n)
            if not kept_last(op.act(last.expand(self._concrete), n), last):
                raise SpecError(
                    f"{op.name}: the last dimension of a OneHot of shape {list(self.shape)} holds the encoding and "
                    "cannot be changed; change the dimensions before it, or use to_categorical_spec() first."
                )
        changes = super()._moved(op, n)
        if self._mask is not None:
            changes["mask"] = strip(op.act(self._mask.expand(self._concrete), n), self._mask.ndim)
        return changes

    def _written(self, index: Tensor) -> Tensor:
        """Categories counted from 0 as one-hot vectors of the spec's dtype."""
        positions = self._positions if index.device == self.device else self._positions.to(index.device)
        hot = index.unsqueeze(-1) == positions
        return hot if self.dtype == torch.bool else hot.to(self.dtype)

    def _draw(self, shape: torch.Size) -> Tensor:
        if self._mask is None:
            hot = torch.randint(self.n, (*shape[:-1], 1), device=self.device) == self._positions
            return hot if self.dtype == torch.bool else hot.to(self.dtype)
        return self._written(self._draw_index(shape[:-1]))

    def _legal(self, val: Tensor, at: int, extra: int) -> bool:
        if not self._is_encoded(val):
            return False
        return self._mask is None or self._allowed(val.byte().argmax(-1), at, extra)

    def _is_encoded(self, val: Tensor) -> bool:
        if val.ndim == 1 and len(val) <= SMALL:
            numbers = val.tolist()
            return numbers.count(1) == 1 and numbers.count(0) == len(numbers) - 1
        if val.dtype != torch.bool and not bool(((val == 0) | (val == 1)).all()):
            return False
        return bool((val.sum(-1) == 1).all())

    def _project(self, val: Tensor, at: int, extra: int) -> Tensor:
        scores = val if val.is_floating_point() else val.to(torch.int64)
        mask = self._aligned_mask(scores.shape[:-1], at, extra, scores.device)
        # The argmax of a row that is legal is the row itself.
        return self._written((scores if mask is None else fill_forbidden(scores, mask)).argmax(-1))

    def _why_not(self, val: Tensor, at: int, extra: int) -> str:
        ones = (val == 1).sum(-1)
        wrong = (ones != 1) | ((val != 0) & (val != 1)).any(-1)
        if bool(wrong.any()):
            position = wrong.nonzero()[0].tolist()
            found = val[tuple(position)].tolist()
            return f"expected one 1 and otherwise 0 in the last dimension, found {found}{located(position)}."
        mask = self._aligned_mask(val.shape[:-1], at, extra, val.device)
        assert mask is not None
        forbidden = ((val == 1) & ~mask).any(-1)
        position = forbidden.nonzero()[0].tolist()
        category = int((val.expand(mask.shape)[tuple(position)] == 1).long().argmax()) + self.start
        return f"found category {category}{located(position)}, which the mask forbids."

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """A native category (or an array of them) as one-hot vectors; what is encoded already is returned.

        Raises:
            SpecError: if a number is not in ``start ... start + n - 1``.
        """
        device = None if ignore_device else self.device
        tensor = as_tensor(val, None, device)
        if tensor.dtype == self.dtype and tensor.ndim and next(self._places(tensor.shape), None):
            return tensor
        index = tensor.long() - self.start
        if index.numel() and bool(((index < 0) | (index >= self.n)).any()):
            raise SpecError(
                f"OneHot expected categories from {self.start} to {self.start + self.n - 1}, found {tensor.tolist()}."
            )
        return self._fitted(self._written(index))

    def to_numpy(self, val: Tensor) -> Any:
        """The native categories."""
        return self.to_categorical(val).cpu().numpy()

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """All legal values, ``[cardinality, *shape]``."""
        return self._written(self._enumerate_index(use_mask))

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The categories as numbers ``start ...``, int64."""
        if safe:
            self.assert_is_in(val)
        return (val.byte() if val.dtype == torch.bool else val).argmax(-1) + self.start

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """The value itself."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> Categorical:
        """The same choice written as a number."""
        from rl_core.specs.categorical import Categorical

        shape = self.shape[:-1]
        spec = Categorical(self.n, shape=shape, device=self.device, mask=self._mask, start=self.start)
        spec.batch_ndim = self.batch_ndim
        return spec

    def to_one_hot_spec(self) -> OneHot:
        """The spec itself."""
        return self

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """The entries of ``tensor_to_index [*, n]`` at the one-hot categories ``index [*, n]``."""
        hot = (index.byte() if index.dtype == torch.bool else index).argmax(-1, keepdim=True)
        return tensor_to_index.gather(-1, hot).squeeze(-1)
