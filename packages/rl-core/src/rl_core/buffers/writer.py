"""The writer contract: where new rows go, decided before anything is copied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rl_core.buffers.storage import Storage

__all__ = ["Span", "Writer"]


class Span(NamedTuple):
    """Storage steps ``start .. stop - 1`` take the data's steps ``source .. source + (stop - start) - 1``."""

    start: int
    stop: int
    source: int


class Writer(ABC):
    """Assigns storage steps to the steps of new data.

    Semantics that every writer keeps:

    - Each storage step appears at most once in the spans of one call, and so does each data step. Data steps that
      appear in no span are not stored.
    - Steps below ``storage.max_steps`` only, and no gap: the filled steps remain ``0 .. n - 1``.
    - ``write_count`` counts all data steps ever offered, stored or not.
    """

    write_count: int = 0

    cursor: int | None = 0
    """Where the order of time starts over among the filled steps: in a full ring the place of the oldest, which the
    next step overwrites. ``None``: the steps lie in no order of time, and no row follows another."""

    @abstractmethod
    def extend(self, steps: int, storage: Storage, data: Any = None) -> list[Span]:
        """Claim places for `steps` new steps and move on.

        Args:
            steps: how many steps the data hold, >= 0.
            storage: the storage that will be written; read for its capacity and fill only.
            data: the data, for writers whose choice depends on them.
        """

    @abstractmethod
    def empty(self) -> None:
        """Start over with an empty storage."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The position as plain data (see :class:`~rl_core.training.stateful.Stateful`)."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state."""
