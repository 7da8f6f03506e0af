"""SingleChoice: one of ``n`` categories, whether written as a number (Categorical) or as a one-hot vector (OneHot)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import TensorSpec
from rl_core.specs.boxes import CategoricalBox
from rl_core.specs.masks import as_mask, check_alive, draw_allowed
from rl_core.specs.values import align

__all__ = ["SingleChoice"]


class SingleChoice(TensorSpec):
    """What Categorical and OneHot share: the categories ``start ... start + n - 1``, the mask ``[*, n]``."""

    n: int
    start: int
    domain = "discrete"

    def _set_categories(self, n: int, start: int, mask: Any, lead: torch.Size) -> None:
        self.n, self.start = int(n), int(start)
        if self.n < 1 and self.n != -1:
            raise SpecError(f"{self._name}: n must be at least 1 (or -1: not known), found {n}.")
        self._lead = lead
        self._provisional_n: int | None = None
        self._mask = as_mask(mask, lead, (self.n,), self.device, self._name)
        check_alive(self._mask, 1, self._name)

    def _config(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "shape": self.shape,
            "device": self.device,
            "dtype": self.dtype,
            "mask": self._mask,
            "start": self.start,
        }

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.shape, self.dtype, self.device, self.n, self.start))

    @property
    def mask(self) -> Tensor | None:
        """Which categories are legal, bool ``[*, n]`` that broadcasts to the batch; None: all."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Set or (None) remove the mask, in place.

        A row that allows nothing (a game that is over) is accepted; drawing from it is an error.
        """
        self._mask = as_mask(mask, self._lead, (self.n,), self.device, self._name)

    def set_provisional_n(self, n: int) -> None:
        """The number of categories to draw from while ``n`` is not known (-1)."""
        self._provisional_n = int(n)

    @property
    def space(self) -> CategoricalBox:
        """The number of categories."""
        return CategoricalBox(self.n, self.start)

    def _aligned_mask(self, lead: torch.Size, at: int, extra: int, device: torch.device) -> Tensor | None:
        """The mask broadcast to a value's leading dimensions."""
        if self._mask is None:
            return None
        mask = align(self._mask.expand(*self._lead, self.n), at, extra).to(device)
        return mask.expand(*torch.broadcast_shapes(lead, mask.shape[:-1]), self.n)

    def full_mask(self) -> Tensor:
        """The mask with every leading dimension of the spec, ``[*lead, n]``; all true where there is none."""
        mask = torch.ones(self.n, dtype=torch.bool, device=self.device) if self._mask is None else self._mask
        return mask.expand(*self._lead, self.n)

    def _draw_index(self, lead: torch.Size) -> Tensor:
        """Legal categories counted from 0, int64 of shape ``lead``."""
        if self._mask is not None:
            return draw_allowed(self._mask.expand(*lead, self.n))
        return torch.randint(self._countable(), lead, device=self.device)

    def _countable(self) -> int:
        count = self._provisional_n if self.n < 0 else self.n
        if not count:
            raise SpecError(f"{self._name} does not know its number of categories; call set_provisional_n first.")
        return count

    def _allowed(self, index: Tensor, at: int, extra: int) -> bool:
        """Whether categories counted from 0, in range, are allowed by the mask."""
        if index.ndim == 0 and self._mask is not None and self._mask.ndim == 1:
            return bool(self._mask[int(index)])
        mask = self._aligned_mask(index.shape, at, extra, index.device)
        if mask is None:
            return True
        index = index.expand(mask.shape[:-1])
        return bool(mask.gather(-1, index.unsqueeze(-1)).all())

    def cardinality(self) -> int:
        """``n`` to the power of the number of elements; the mask does not count."""
        return self._countable() ** self._lead.numel()

    def _enumerate_index(self, use_mask: bool) -> Tensor:
        """All combinations of categories counted from 0, int64 ``[cardinality, *lead]``."""
        count = self._lead.numel()
        one = torch.arange(self._countable(), device=self.device)
        index = (
            torch.cartesian_prod(*[one] * count).reshape(-1, *self._lead) if count else one.new_zeros(1, *self._lead)
        )
        mask = self._aligned_mask(index.shape, 0, 1, index.device) if use_mask else None
        if mask is None:
            return index
        return index[mask.gather(-1, index.unsqueeze(-1)).reshape(len(index), -1).all(-1)]
