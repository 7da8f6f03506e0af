"""MultiChoice: several choices side by side, whether written as numbers (MultiCategorical) or one-hot (MultiOneHot)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.specs.base import TensorSpec
from rl_core.specs.boxes import BoxList, CategoricalBox
from rl_core.specs.masks import as_mask, check_alive
from rl_core.specs.parts import Parts
from rl_core.specs.values import align, located

__all__ = ["MultiChoice", "as_nvec"]


def as_nvec(nvec: Any, device: Any, kind: str) -> Tensor:
    """The counts of categories as int64 of at least one dimension."""
    counts = torch.as_tensor(nvec, dtype=torch.int64, device=device)
    counts = counts.reshape(1) if counts.ndim == 0 else counts
    if not counts.numel() or bool((counts < 1).any()):
        raise SpecError(f"{kind}: nvec holds numbers of categories, at least 1 each; found {counts.tolist()}.")
    return counts


class MultiChoice(TensorSpec):
    """What MultiCategorical and MultiOneHot share: ``nvec``, offsets, masks per part or joint."""

    nvec: Tensor
    start: Tensor
    domain = "discrete"

    def _set_parts(self, nvec: Tensor, start: Any, mask: Any, lead: torch.Size) -> None:
        self.nvec = nvec.to(self.device)
        self.start = torch.as_tensor(start, dtype=torch.int64, device=self.device).expand(nvec.shape)
        self._parts = Parts(tuple(nvec.flatten().tolist()), self.device)
        self._offset = bool(self.start.any())
        self._lead = lead
        self.update_mask(mask)
        check_alive(self._mask, self._mask_ndim, self._name)

    def _config(self) -> dict[str, Any]:
        return {
            "nvec": self.nvec,
            "shape": self.shape,
            "device": self.device,
            "dtype": self.dtype,
            "mask": self._mask,
            "start": self.start,
        }

    def _identity(self) -> dict[str, Any]:
        return {**self._config(), "nvec": self.nvec.expand(*self._lead, *self.nvec.shape)}

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.shape, self.dtype, self.device, self._parts.total))

    @property
    def mask(self) -> Tensor | None:
        """Which categories (``[*, sum(nvec)]``) or combinations (``[*, *nvec]``) are legal; None: all."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Set or (None) remove the mask, in place.

        Args:
            mask: bool ``[*, sum(nvec)]``, one entry per category of each part, or ``[*, n_1, ..., n_K]``, one entry per
                combination. A row that allows nothing is accepted here; drawing from it is an error.
        """
        if mask is not None:
            mask = torch.as_tensor(mask, dtype=torch.bool, device=self.device)
        last = (self._parts.total,) if mask is None else self._parts.mask_dims(mask)
        self._mask = as_mask(mask, self._lead, last, self.device, self._name)
        self._mask_ndim = len(last)

    @property
    def space(self) -> BoxList:
        """One categorical box per part."""
        starts = self.start.flatten().tolist()
        return BoxList(tuple(CategoricalBox(n, s) for n, s in zip(self._parts.counts, starts, strict=True)))

    def _full_mask(self) -> Tensor | None:
        """The mask with every leading dimension of the spec."""
        if self._mask is None:
            return None
        return self._mask.expand(*self._lead, *self._mask.shape[self._mask.ndim - self._mask_ndim :])

    def _aligned_mask(self, lead: torch.Size, at: int, extra: int, device: torch.device) -> Tensor | None:
        """The mask broadcast to a value's leading dimensions."""
        mask = self._full_mask()
        if mask is None:
            return None
        mask, k = align(mask, at, extra).to(device), self._mask_ndim
        return mask.expand(*torch.broadcast_shapes(lead, mask.shape[:-k]), *mask.shape[-k:])

    def _draw_index(self, lead: torch.Size) -> Tensor:
        mask = None if self._mask is None else self._mask.expand(*lead, *self._mask.shape[-self._mask_ndim :])
        return self._parts.draw(lead, mask)

    def _wrong_rows(self, index: Tensor, at: int, extra: int) -> Tensor:
        """Rows of choices ``[*B, K]`` that are out of range or forbidden, bool ``[*B]``."""
        wrong = ~self._parts.in_range(index).all(-1)
        mask = self._aligned_mask(index.shape[:-1], at, extra, index.device)
        if mask is None or bool(wrong.any()):
            return wrong
        lead = mask.shape[: mask.ndim - self._mask_ndim]
        return ~self._parts.allowed(index.expand(*lead, index.shape[-1]), mask)

    def cardinality(self) -> int:
        """The product of the counts, over all elements; the mask does not count."""
        return int(math.prod(self._parts.counts) ** self._lead.numel())

    def _enumerate_index(self, use_mask: bool) -> Tensor:
        """All rows of choices, ``[cardinality, *lead, K]``."""
        table, count = self._parts.combinations(), self._lead.numel()
        rows = torch.cartesian_prod(*[torch.arange(len(table), device=self.device)] * count).reshape(-1, *self._lead)
        index = table[rows]
        if not use_mask or self._mask is None:
            return index
        return index[~self._wrong_rows(index, 0, 1).reshape(len(index), -1).any(-1)]

    def _native_index(self, val: Tensor) -> Tensor:
        """Native numbers ``[*B, *nvec.shape]`` (or ``[*B, K]``) counted from 0, ``[*B, K]``."""
        k = self.nvec.ndim
        shaped = val.ndim >= k and val.shape[val.ndim - k :] == self.nvec.shape
        flat = val.flatten(val.ndim - k) if shaped else val
        if flat.ndim == 0 or flat.shape[-1] != len(self._parts.counts):
            raise SpecError(
                f"{self._name} expected numbers of shape [*, {', '.join(map(str, self.nvec.shape))}], "
                f"found {list(val.shape)}."
            )
        return flat - self.start.flatten().to(flat.device) if self._offset else flat

    def _native(self, index: Tensor) -> Tensor:
        """Choices counted from 0, ``[*B, K]``, as native numbers ``[*B, *nvec.shape]``."""
        if self._offset:
            index = index + self.start.flatten().to(index.device)
        return index if self.nvec.ndim == 1 else index.unflatten(-1, self.nvec.shape)

    def _why_row(self, index: Tensor, at: int, extra: int) -> str:
        wrong = self._wrong_rows(index, at, extra)
        position = wrong.nonzero()[0].tolist()
        found = self._native(index.expand(*wrong.shape, index.shape[-1])[tuple(position)]).tolist()
        last = (self.start + self.nvec - 1).tolist()
        where = f"found {found}{located(position)}"
        if bool(self._parts.in_range(index).all()):
            return f"{where}, which the mask forbids."
        return f"expected numbers from {self.start.tolist()} to {last}, {where}."
