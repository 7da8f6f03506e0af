"""What the buffer kits test with: rows that know their number, and a storage that only counts.

Row k has ``x = [k, k + 0.5]`` and ``("next", "y") = 10 k``, so a check can tell which row came back and whether its
entries still belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.buffers import Block, Span, Storage

__all__ = ["CountedSlots", "assert_raises", "numbered_rows", "row_numbers"]


def numbered_rows(start: int, n: int) -> TensorDict:
    """Rows ``start .. start + n - 1`` as a TensorDict ``[n]``.

    >>> numbered_rows(3, 2)["next", "y"]
    tensor([30, 40])
    """
    k = torch.arange(start, start + n)
    return TensorDict(
        {"x": torch.stack([k.float(), k + 0.5], -1), "next": TensorDict({"y": 10 * k}, batch_size=[n])}, batch_size=[n]
    )


def row_numbers(batch: TensorDictBase | Sequence[TensorDictBase]) -> list[int]:
    """Which rows a batch (or a list of rows) holds; fails where the entries of a row do not belong together."""
    rows: Any = batch if isinstance(batch, TensorDictBase) else torch.stack(list(batch))
    x, y = rows["x"], rows["next", "y"]
    assert bool((x[:, 1] == x[:, 0] + 0.5).all()) and bool((y == (10 * x[:, 0]).long()).all()), (
        f"entries of different rows were mixed: x={x.tolist()}, y={y.tolist()}"
    )
    return [int(k) for k in x[:, 0].tolist()]


def assert_raises(error: type[Exception], action: Any, what: str) -> None:
    """Fail unless `action` raises `error`, saying `what` should have raised."""
    try:
        action()
    except error:
        return
    except Exception as other:
        raise AssertionError(
            f"{what} must raise {error.__name__}, it raised {type(other).__name__}: {other}"
        ) from other
    raise AssertionError(f"{what} must raise {error.__name__}, it did not raise")


class CountedSlots(Storage):
    """A storage of which only the length and the capacity matter."""

    def __init__(self, filled: int, max_size: int = 10**6) -> None:
        self.filled, self.max_size = filled, max_size

    def __len__(self) -> int:
        return self.filled

    def prepare(self, data: Any, row_dims: int | None = None) -> Block:
        raise NotImplementedError("this storage holds no rows")

    def write(self, block: Block, spans: Sequence[Span]) -> None:
        raise NotImplementedError("this storage holds no rows")

    def get(self, index: Tensor) -> Any:
        raise NotImplementedError("this storage holds no rows")

    def set(self, index: Tensor, data: Any) -> None:
        raise NotImplementedError("this storage holds no rows")

    def empty(self) -> None:
        self.filled = 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        pass
