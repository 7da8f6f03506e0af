"""Row gather in plain torch: the twin of the C++ kernel, used where that is absent and for rows on other devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_core.errors import ReplayBufferError

__all__ = ["check_slots", "gather_rows_reference", "slot_error"]


def slot_error(slot: int, position: int, live: int) -> ReplayBufferError:
    """The error for a slot that holds no row."""
    filled = f"filled are 0 to {live - 1}" if live else "the storage is empty"
    return ReplayBufferError(f"slot {slot} (position {position} of the index) holds no row: {filled}")


def check_slots(index: Tensor, live: int) -> None:
    """Raise ReplayBufferError for the first slot of `index` (int64 ``[B]``) outside ``[0, live)``."""
    if index.numel() == 0:
        return
    low, high = torch.aminmax(index)
    if low < 0 or high >= live:
        position = int(((index < 0) | (index >= live)).nonzero()[0])
        raise slot_error(int(index[position]), position, live)


def gather_rows_reference(
    leaves: Sequence[Tensor], index: Tensor, live: int, out: list[Tensor] | None = None
) -> list[Tensor]:
    """Copies of the chosen rows of every leaf.

    Args:
        leaves: tensors ``[capacity, ...]``.
        index: slots, int64 ``[B]``.
        live: how many leading rows are filled.
        out: one tensor ``[B, ...]`` per leaf to be filled; default: new ones.

    Returns:
        `out`, or one new tensor ``[B, ...]`` per leaf.

    Raises:
        ReplayBufferError: a slot is outside ``[0, live)``.

    >>> gather_rows_reference([torch.arange(4)], torch.tensor([2, 2, 0]), live=3)
    [tensor([2, 2, 0])]
    """
    check_slots(index, live)
    # index_select copies whole rows; aten::index moves element by element and enters an OpenMP region.
    if out is None:
        return [leaf.index_select(0, index.to(leaf.device)) for leaf in leaves]
    for leaf, target in zip(leaves, out, strict=True):
        if leaf.device == target.device:
            torch.index_select(leaf, 0, index.to(leaf.device), out=target)
        else:
            target.copy_(leaf.index_select(0, index.to(leaf.device)))
    return out
