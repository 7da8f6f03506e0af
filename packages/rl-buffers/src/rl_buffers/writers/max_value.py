"""TensorDictMaxValueWriter: keeps the rows that rank highest, whenever they came."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.buffers import Span, Storage, Writer
from rl_core.errors import CheckpointError, KeyMissingError, ReplayBufferError
from rl_core.keys import Key, as_key

__all__ = ["TensorDictMaxValueWriter"]

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda values: values.sum(-1),
    "mean": lambda values: values.mean(-1),
    "max": lambda values: values.amax(-1),
    "min": lambda values: values.amin(-1),
    "median": lambda values: values.median(-1).values,
}


class TensorDictMaxValueWriter(Writer):
    """Fills the storage, then lets a row replace the lowest one if it ranks above it; others are not stored.

    The rows lie in no order of time, so episodes and slices cannot be told among them: store whole sequences as rows
    (``dim_extend=0``) to keep the best of those.

    Args:
        rank_key: the entry that ranks a row; default ``("next", "reward")``.
        reduction: how a row's values of it become one number: "sum", "mean", "max", "min" or "median".

    Raises:
        ReplayBufferError: an unknown reduction.

    >>> from rl_buffers import LazyTensorStorage, TensorDictReplayBuffer
    >>> from tensordict import TensorDict
    >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter("score"))
    >>> buffer.extend(TensorDict({"score": torch.tensor([1.0, 5.0, 3.0, 0.0])}, [4]))
    tensor([-1,  1,  0, -1])
    >>> buffer[:]["score"]
    tensor([3., 5.])
    """

    def __init__(self, rank_key: Key | None = None, reduction: str = "sum") -> None:
        if reduction not in _REDUCTIONS:
            raise ReplayBufferError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
        self.rank_key: Key = ("next", "reward") if rank_key is None else as_key(rank_key)
        self.reduction = reduction
        self.cursor: int | None = None
        self.write_count = 0
        self._heap: list[tuple[float, int]] = []  # (rank, step), the lowest first

    def extend(self, steps: int, storage: Storage, data: Any = None) -> list[Span]:
        """Decide for each of the new rows, in their order, whether it is stored and which one it replaces.

        Raises:
            ReplayBufferError: the storage has lanes, or a rank is not a number.
            KeyMissingError: the data lack :attr:`rank_key`.
        """
        if storage.ndim != 1:
            raise ReplayBufferError(f"rows that are ranked one by one have no lanes: use ndim=1, not {storage.ndim}")
        ranks = self._ranks(steps, storage, data)
        chosen: dict[int, int] = {}  # step: data row
        heap, capacity = self._heap, storage.max_steps
        for source, rank in enumerate(ranks):
            if len(heap) < capacity:
                place = len(heap)
                heapq.heappush(heap, (rank, place))
            elif rank > heap[0][0]:
                place = heap[0][1]
                heapq.heapreplace(heap, (rank, place))
            else:
                continue
            chosen[place] = source
        self.write_count += steps
        return _spans(chosen)

    def _ranks(self, steps: int, storage: Storage, data: Any) -> list[float]:
        if steps == 0:
            return []
        if data is None:  # rows that are in a storage already when it is handed to a buffer
            values = storage.entry(self.rank_key, torch.arange(steps))
        else:
            values = data.get(self.rank_key, None) if isinstance(data, TensorDictBase) else None
        if values is None:
            raise KeyMissingError(
                f"the data have no entry {self.rank_key!r}, which ranks their rows: name another one with rank_key=..."
            )
        reduced = _REDUCTIONS[self.reduction](values.detach().to("cpu", torch.float64).reshape(steps, -1))
        ranks: list[float] = reduced.tolist()
        for source, rank in enumerate(ranks):
            if math.isnan(rank):
                raise ReplayBufferError(f"row {source} has a rank ({self.rank_key!r}) that is not a number")
        return ranks

    def empty(self) -> None:
        """Start over with an empty storage."""
        self._heap, self.write_count = [], 0

    def state_dict(self) -> dict[str, Any]:
        """The ranks of the stored rows in the order of their places, float64 ``[rows]``, and the count."""
        ranks = torch.tensor([rank for _, rank in sorted((place, rank) for rank, place in self._heap)])
        return {"ranks": ranks.to(torch.float64), "write_count": self.write_count}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on with the saved ranks.

        Raises:
            CheckpointError: the state is of a writer that ranks nothing, and rows were stored.
        """
        if "ranks" not in state_dict and state_dict["write_count"]:
            raise CheckpointError(
                "the state is of a writer that does not rank rows: set this writer on an empty buffer"
            )
        ranks = state_dict["ranks"].tolist() if "ranks" in state_dict else []
        self._heap = [(rank, place) for place, rank in enumerate(ranks)]
        heapq.heapify(self._heap)
        self.write_count = int(state_dict["write_count"])


def _spans(chosen: Mapping[int, int]) -> list[Span]:
    """Places and the data rows that go there, neighbours in both taken together."""
    spans: list[Span] = []
    for place, source in sorted(chosen.items()):
        if spans:
            start, stop, first = spans[-1]
            if place == stop and source == first + stop - start:
                spans[-1] = Span(start, stop + 1, first)
                continue
        spans.append(Span(place, place + 1, source))
    return spans
