"""Binary: vectors of zeros and ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.boxes import BinaryBox
from rl_core.specs.shape_ops import as_size
from rl_core.specs.values import located, ordered

__all__ = ["Binary"]


class Binary(TensorSpec):
    """Zeros and ones.

    Args:
        n: the length of the last dimension; by default that of the shape.
        shape: shape of a value, by default ``(n,)``.
        device: where values are made.
        dtype: of a value.

    Example:
        >>> Binary(3).is_in(torch.tensor([0, 1, 1], dtype=torch.int8))
        True
    """

    domain = "discrete"

    def __init__(
        self,
        n: int | None = None,
        shape: Shape | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.int8,
    ) -> None:
        if n is None and shape is None:
            raise SpecError("Binary needs n or a shape.")
        size = torch.Size([n]) if shape is None and n is not None else as_size(shape)
        if n is not None and (not size or size[-1] != n):
            raise SpecError(f"Binary: the last dimension of the shape {list(size)} must be n={n}.")
        super().__init__(size, dtype, device)

    def _config(self) -> dict[str, Any]:
        return {"shape": self.shape, "device": self.device, "dtype": self.dtype}

    @property
    def n(self) -> int:
        """The length of the last dimension."""
        return self.shape[-1] if self.shape else 1

    @property
    def space(self) -> BinaryBox:
        """The number of bits."""
        return BinaryBox(self.n)

    def _draw(self, shape: torch.Size) -> Tensor:
        return torch.randint(0, 2, shape, dtype=self.dtype, device=self.device)

    def _legal(self, val: Tensor, at: int, extra: int) -> bool:
        return val.dtype == torch.bool or bool(((val == 0) | (val == 1)).all())

    def _project(self, val: Tensor, at: int, extra: int) -> Tensor:
        if val.dtype == torch.bool:
            return val.to(self.dtype)
        return (val > 0.5 if val.is_floating_point() else ordered(val) > 0).to(self.dtype)

    def _why_not(self, val: Tensor, at: int, extra: int) -> str:
        position = ((val != 0) & (val != 1)).nonzero()[0].tolist()
        return f"expected 0 or 1, found {val[tuple(position)].item()}{located(position)}."

    def cardinality(self) -> int:
        """Two to the power of the number of elements."""
        return int(2 ** self._concrete.numel())

    def enumerate(self, use_mask: bool = False) -> Tensor:
        """All values, ``[cardinality, *shape]``."""
        bit = torch.tensor([0, 1], dtype=self.dtype, device=self.device)
        return torch.cartesian_prod(*[bit] * self._concrete.numel()).reshape(-1, *self._concrete)
