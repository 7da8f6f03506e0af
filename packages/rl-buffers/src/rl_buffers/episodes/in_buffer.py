"""A buffer's episode tables: made when something asks for one, told of every write, saved and loaded with the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.table import EpisodeTable
from rl_core.buffers import Span, Storage, Writer

__all__ = ["EpisodeTables", "KnowsEpisodes", "run_length"]


@runtime_checkable
class KnowsEpisodes(Protocol):
    """A buffer that keeps episode tables."""

    def episodes(self, boundaries: Boundaries | None = None) -> EpisodeTable:
        """The table of a rule, kept up to date by each write."""


class EpisodeTables:
    """One table per rule; samplers, relabellings and queries that follow one rule share its table."""

    def __init__(self) -> None:
        self._tables: dict[tuple[object, ...], EpisodeTable] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, boundaries: Boundaries, storage: Storage, writer: Writer) -> EpisodeTable:
        """The table of a rule; it learns of the rows that are there already."""
        table = self._tables.get(boundaries.name)
        if table is None:
            table = EpisodeTable(boundaries)
            table.rebuild(storage, writer.cursor)
            self._tables[boundaries.name] = table
        return table

    def written(self, storage: Storage, spans: Sequence[Span], run: int) -> None:
        """Tell all tables of rows that were written."""
        for table in self._tables.values():
            table.written(storage, spans, run)

    def changed(self, storage: Storage, slots: Tensor) -> None:
        """Tell all tables of rows that were overwritten in place."""
        for table in self._tables.values():
            table.changed(storage, slots)

    def empty(self) -> None:
        """Forget all rows."""
        for table in self._tables.values():
            table.empty()

    def rebuild(self, storage: Storage, writer: Writer) -> None:
        """Read all rows again."""
        for table in self._tables.values():
            table.rebuild(storage, writer.cursor)

    def state_dict(self) -> list[dict[str, Any]]:
        """The tables' states in the order in which they were asked for."""
        return [table.state_dict() for table in self._tables.values()]

    def load_state_dict(self, states: Sequence[dict[str, Any]] | None, storage: Storage, writer: Writer) -> None:
        """Take over such states; where their number is another one, the tables are read from the rows."""
        if states is None or len(states) != len(self._tables):
            self.rebuild(storage, writer)
            return
        for table, state in zip(self._tables.values(), states, strict=True):
            table.load_state_dict(state)


def run_length(data: Any, row_dims: int | None, storage: Storage) -> int:
    """How many rows of `data` follow each other in time before those of another environment begin; 0: all do.

    A rollout ``[N, T]`` written into a storage without lanes is N runs of T rows.
    """
    if storage.ndim != 1 or not isinstance(data, TensorDictBase):
        return 0
    dims = data.ndim if row_dims is None else row_dims
    if dims < 2 or data.shape[: dims - 1].numel() == 1:
        return 0
    return int(data.shape[dims - 1])
