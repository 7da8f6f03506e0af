"""SideTable: whole values for the few rows of a storage that cannot be put together from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["SideTable"]

_FIRST = 16  # places at first; the table doubles at need


class SideTable:
    """Keeps values for some of the rows of a storage; it grows with their number.

    Args:
        rows: how many rows the storage has.
        leaves: dtype and shape of each value kept for a row.
        device: where they are kept.

    >>> table = SideTable(10, [(torch.int64, (2,))], torch.device("cpu"))
    >>> table.put(torch.tensor([7]), [torch.tensor([[1, 2]])])
    >>> table.place_of[torch.tensor([6, 7])].tolist(), table.values[0][0].tolist()
    ([-1, 0], [1, 2])
    """

    def __init__(self, rows: int, leaves: Sequence[tuple[torch.dtype, tuple[int, ...]]], device: torch.device) -> None:
        self.place_of = torch.full((rows,), -1, dtype=torch.int32, device=device)
        """For each row its place in :attr:`values`, -1 for rows that need none."""
        self.values = [torch.empty((_FIRST, *shape), dtype=dtype, device=device) for dtype, shape in leaves]
        self._row_of = torch.full((_FIRST,), -1, dtype=torch.int64)
        self._free: list[int] = list(range(_FIRST - 1, -1, -1))  # the lowest place last, so that it is taken first

    def __len__(self) -> int:
        """The number of rows that have values here."""
        return len(self._row_of) - len(self._free)

    def put(self, rows: Tensor, values: Sequence[Tensor]) -> None:
        """Keep `values` (one tensor ``[n, ...]`` per leaf) for `rows`, int64 ``[n]``, which have none yet."""
        n = rows.numel()
        if n == 0:
            return
        while len(self._free) < n:
            self._grow()
        places = torch.tensor([self._free.pop() for _ in range(n)])
        self._row_of[places] = rows
        self.place_of[rows.to(self.place_of.device)] = places.to(self.place_of)
        for kept, value in zip(self.values, values, strict=True):
            kept.index_copy_(0, places.to(kept.device), value.to(kept.device))

    def drop(self, rows: Tensor) -> None:
        """Forget the values of `rows`, int64 ``[n]`` without repetition; rows that have none are passed over."""
        on = rows.to(self.place_of.device)
        places = self.place_of.index_select(0, on)
        self.place_of.index_fill_(0, on, -1)
        gone = places[places >= 0].tolist()
        self._row_of[gone] = -1
        self._free.extend(reversed(gone))

    def clear(self) -> None:
        """Forget all values."""
        self.place_of.fill_(-1)
        self._row_of.fill_(-1)
        self._free = list(range(len(self._row_of) - 1, -1, -1))

    def _grow(self) -> None:
        size = len(self._row_of)
        self.values = [torch.cat([kept, torch.empty_like(kept)]) for kept in self.values]
        self._row_of = torch.cat([self._row_of, torch.full((size,), -1, dtype=torch.int64)])
        self._free = [*range(2 * size - 1, size - 1, -1), *self._free]

    def nbytes(self) -> int:
        """How much memory the table takes."""
        return sum(tensor.nbytes for tensor in (self.place_of, self._row_of, *self.values))

    def state_dict(self) -> dict[str, Any]:
        """The rows that have values, and these, in the order of their places."""
        places = (self._row_of >= 0).nonzero().squeeze(-1)
        return {
            "rows": self._row_of[places],
            "values": [kept.index_select(0, places.to(kept.device)) for kept in self.values],
        }

    def load_state_dict(self, state: Any) -> None:
        """Take over such rows and values."""
        self.clear()
        self.put(state["rows"], state["values"])
