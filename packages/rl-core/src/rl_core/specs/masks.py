"""Masks over categories: which are legal, drawing among them, and how a mask follows its spec."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["as_mask", "check_alive", "draw_allowed", "fill_forbidden", "kept_last", "strip"]


def as_mask(
    mask: Any, lead: torch.Size, last: tuple[int, ...], device: torch.device | None, kind: str
) -> Tensor | None:
    """A boolean mask ``[*, *last]`` whose leading dimensions broadcast to ``lead``."""
    if mask is None:
        return None
    tensor = torch.as_tensor(mask, dtype=torch.bool, device=device)
    k = len(last)
    try:
        if tuple(tensor.shape[-k:]) != last:
            raise RuntimeError("other categories")
        tensor.expand(*lead, *last)
    except RuntimeError as error:
        raise SpecError(
            f"{kind}: the mask's shape {list(tensor.shape)} does not fit; it must broadcast to {[*lead, *last]}."
        ) from error
    return tensor


def check_alive(mask: Tensor | None, k: int, kind: str) -> None:
    """Raise if some row of the mask, over its last ``k`` dimensions, allows nothing."""
    if mask is not None and mask.numel() and not bool(mask.flatten(mask.ndim - k).any(-1).all()):
        raise SpecError(f"{kind}: a row of the mask allows no category at all: {mask.tolist()}.")


def fill_forbidden(scores: Tensor, mask: Tensor) -> Tensor:
    """The scores with the smallest number of their dtype where the mask forbids."""
    if scores.is_floating_point():
        return scores.masked_fill(~mask, float("-inf"))
    return scores.masked_fill(~mask, torch.iinfo(scores.dtype).min)


def draw_allowed(mask: Tensor) -> Tensor:
    """One legal position per row, uniformly: ``[*B, n]`` gives int64 ``[*B]``."""
    best, position = (torch.rand(mask.shape, device=mask.device) + mask).max(-1)  # legal: [1, 2), others: [0, 1)
    if best.numel() and best.min().item() < 1:
        row = (best < 1).nonzero()[0].tolist()
        raise SpecError(f"Nothing can be drawn: the mask's row {row} allows no category. Reset that environment first.")
    return position


def strip(tensor: Tensor, ndim: int) -> Tensor:
    """Drop leading dimensions along which nothing changes, down to ``ndim`` dimensions."""
    while tensor.ndim > ndim and tensor.shape[0] > 0 and bool((tensor == tensor[:1]).all()):
        tensor = tensor[0]
    return tensor


def kept_last(moved: Tensor, last: Tensor) -> bool:
    """Whether a moved grid of positions still ends in the positions ``last``, unchanged."""
    k = last.ndim
    return moved.ndim >= k and moved.shape[moved.ndim - k :] == last.shape and bool((moved == last).all())
