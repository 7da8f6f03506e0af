"""Parts: several choices side by side, the arithmetic behind MultiCategorical and MultiOneHot.

Choices are counted from 0 and stand in one last dimension, ``[*B, K]``; their one-hot form is ``[*B, S]`` with
``S = sum(nvec)``. A mask speaks either of each part alone (*per part*, ``[*B, S]``) or of combinations (*joint*,
``[*B, n_1, ..., n_K]``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.specs.masks import draw_allowed, fill_forbidden

__all__ = ["Parts"]


@dataclass
class Parts:
    """The numbers of categories of ``K`` choices.

    Args:
        counts: categories per part.
        device: where draws are made.
    """

    counts: tuple[int, ...]
    device: torch.device | None

    def __post_init__(self) -> None:
        """Prepare what every call needs."""
        self.total = sum(self.counts)
        self.limits = torch.tensor(self.counts, device=self.device)
        self.offsets = self.limits.cumsum(0) - self.limits
        self._same = self.counts[0] if len(set(self.counts)) == 1 else None

    def is_joint(self, mask: Tensor) -> bool:
        """Whether a mask speaks of combinations."""
        return mask.ndim > 0 and len(self.counts) > 1 and mask.shape[-1] != self.total

    def mask_dims(self, mask: Tensor) -> tuple[int, ...]:
        """The sizes that a mask's last dimensions must have."""
        return self.counts if self.is_joint(mask) else (self.total,)

    def combinations(self) -> Tensor:
        """All combinations in the order of a flattened joint mask, ``[prod(counts), K]``."""
        ranges = [torch.arange(count, device=self.device) for count in self.counts]
        return torch.cartesian_prod(*ranges).reshape(-1, len(ranges))

    def draw(self, lead: torch.Size, mask: Tensor | None) -> Tensor:
        """Random legal choices, int64 ``[*lead, K]``; the mask is of full shape."""
        if mask is None:
            if self._same is not None:
                return torch.randint(self._same, (*lead, len(self.counts)), device=self.device)
            # Doubles, so that no product is rounded up to the limit.
            part = torch.rand((*lead, len(self.counts)), dtype=torch.float64, device=self.device)
            return (part * self.limits).long()
        if self.is_joint(mask):
            return self.combinations()[draw_allowed(mask.flatten(len(lead)))]
        return torch.stack([draw_allowed(part) for part in mask.split(self.counts, -1)], -1)

    def in_range(self, index: Tensor) -> Tensor:
        """Which choices exist, bool ``[*B, K]``."""
        return (index >= 0) & (index < self.limits.to(index.device))

    def allowed(self, index: Tensor, mask: Tensor) -> Tensor:
        """Which rows of choices (all in range) the mask allows, bool ``[*B]``; the mask is of full shape."""
        if self.is_joint(mask):
            strides = torch.tensor([int(torch.tensor(self.counts[i + 1 :]).prod()) for i in range(len(self.counts))])
            flat = (index * strides.to(index.device)).sum(-1, keepdim=True)
            return mask.flatten(mask.ndim - len(self.counts)).gather(-1, flat).squeeze(-1)
        return mask.gather(-1, index + self.offsets.to(index.device)).all(-1)

    def best(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """The legal choices with the largest sum of scores ``[*B, S]``: int64 ``[*B, K]``; the first of equals."""
        parts = scores.split(self.counts, -1)
        if mask is None:
            return torch.stack([part.argmax(-1) for part in parts], -1)
        if not self.is_joint(mask):
            masks = mask.split(self.counts, -1)
            return torch.stack([fill_forbidden(p, m).argmax(-1) for p, m in zip(parts, masks, strict=True)], -1)
        table = self.combinations().to(scores.device)
        sums = torch.stack([part[..., table[:, k]] for k, part in enumerate(parts)]).sum(0)
        return table[fill_forbidden(sums, mask.flatten(mask.ndim - len(self.counts))).argmax(-1)]

    def nearest(self, index: Tensor, mask: Tensor | None) -> Tensor:
        """The legal choices nearest to numbers in range (least sum of absolute differences)."""
        if mask is None:
            return index
        positions = torch.cat([torch.arange(count, device=index.device) for count in self.counts])
        owners = torch.repeat_interleave(torch.arange(len(self.counts)), torch.tensor(self.counts)).to(index.device)
        return self.best(-(positions - index[..., owners]).abs(), mask)

    def one_hot(self, index: Tensor) -> Tensor:
        """Choices ``[*B, K]`` as one-hot vectors side by side, bool ``[*B, S]``."""
        hot = torch.zeros((*index.shape[:-1], self.total), dtype=torch.bool, device=index.device)
        return hot.scatter_(-1, index + self.offsets.to(index.device), True)

    def from_one_hot(self, hot: Tensor) -> Tensor:
        """One-hot vectors ``[*B, S]`` as choices, int64 ``[*B, K]``."""
        scores = hot.byte() if hot.dtype == torch.bool else hot
        return torch.stack([part.argmax(-1) for part in scores.split(self.counts, -1)], -1)
