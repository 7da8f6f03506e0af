"""The storage contract: rows kept by slot number, their structure fixed by the first write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_core.buffers.writer import Span

if TYPE_CHECKING:
    import torch

    from rl_core.keys import Key

__all__ = ["Block", "Storage"]


class Block(NamedTuple):
    """Data that a storage has checked and is ready to write.

    Attributes:
        steps: how many write steps the data hold. A step is one row of a 1-d storage, and one row of every lane where
            ``storage.ndim > 1``.
        payload: whatever the storage needs to write them; only the storage that made it reads it.
    """

    steps: int
    payload: Any


class Storage(ABC):
    """Keeps at most ``max_size`` rows, addressed by slots ``0 .. len(storage) - 1``.

    Semantics that every storage keeps:

    - The first write fixes the structure (keys, dtypes, shapes). Later data with a missing, an extra or a different
      entry raise :class:`~rl_core.errors.ReplayBufferError`, which names the entry, and nothing is written.
    - The storage takes copies and gives copies: neither changing written data nor changing a sample alters the rows.
    - The filled slots are always ``range(len(storage))``. A step fills ``lanes`` slots: slot ``step * lanes + lane``.
    - A slot outside the filled ones raises :class:`~rl_core.errors.ReplayBufferError`, and never crashes.
    """

    max_size: int
    """Capacity in rows. A storage with lanes rounds it up to whole steps when it learns their number."""

    ndim: int = 1
    """How many leading dimensions of the data count rows: 1, or 2 for data ``[lanes, time]``, and so on."""

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """The sizes of the leading ``ndim - 1`` dimensions of the data; empty in a 1-d storage or before a write."""
        return ()

    @property
    def max_steps(self) -> int:
        """Capacity in write steps: ``max_size`` divided by the number of lanes. It is known after :meth:`prepare`."""
        return self.max_size

    @abstractmethod
    def prepare(self, data: Any, row_dims: int | None = None) -> Block:
        """Check `data` against the structure (the first call fixes it) and count their steps; no row is written.

        Args:
            data: a TensorDict, or what else the storage takes.
            row_dims: how many leading batch dimensions of `data` count rows. ``None`` means all of them: a 1-d storage
                flattens a batch ``[N, T]`` into ``N * T`` rows. ``ndim - 1`` means that `data` are a single step.

        Raises:
            ReplayBufferError: the data do not have the structure of the rows.
        """

    @abstractmethod
    def write(self, block: Block, spans: Sequence[Span]) -> None:
        """Copy the steps that `spans` name from a prepared block into the storage.

        The spans may come in any order; together they leave no gap below the filled steps. None at all writes nothing.
        """

    @abstractmethod
    def get(self, index: torch.Tensor) -> Any:
        """Copies of the rows at `index`.

        Args:
            index: slots, int64 ``[B]``; they may repeat.

        Returns:
            Data with batch size ``[B]`` (a TensorDict, a tensor), or a list of B items where rows are arbitrary
            objects; the buffer collates a list.

        Raises:
            ReplayBufferError: a slot is not filled.
        """

    def entry(self, key: Key, index: torch.Tensor) -> torch.Tensor | None:
        """Copies of one entry of the rows at `index`: what an episode table or a relabelling reads.

        This reads whole rows; a storage that keeps entries apart overrides it.

        Args:
            key: the entry.
            index: filled slots, int64 ``[B]``.

        Returns:
            ``[B, ...]``, or ``None`` where the rows have no such entry.
        """
        import torch
        from tensordict import is_tensor_collection

        rows = self.get(index)
        parts = rows if isinstance(rows, list) else [rows]
        if not all(is_tensor_collection(part) for part in parts):
            return None
        found = [part.get(key, None) for part in parts]
        if any(not isinstance(value, torch.Tensor) for value in found):
            return None
        return torch.stack(found) if isinstance(rows, list) else found[0]

    @abstractmethod
    def set(self, index: torch.Tensor, data: Any) -> None:
        """Overwrite the filled rows at `index` (int64 ``[B]``, the last of equal slots wins) with B rows of `data`."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of filled slots (rows, lanes included)."""

    @abstractmethod
    def empty(self) -> None:
        """Forget all rows; the structure stays."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The filled rows and the structure as plain data (see :class:`~rl_core.training.stateful.Stateful`)."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state, structure included, as copies.

        Raises:
            CheckpointError: the state is of another capacity or kind of storage.
        """
