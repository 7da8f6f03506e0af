"""The replay-buffer contract: what collectors, trainers and losses may ask of any buffer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

__all__ = ["ReplayBuffer"]


@runtime_checkable
class ReplayBuffer(Protocol):
    """Keeps rows, oldest overwritten first unless its writer says otherwise, and gives random batches of them.

    Every operation is atomic: a thread that samples while another extends sees each row either old or new, never half.
    Rows go in and out as copies; the data given to :meth:`add` and :meth:`extend` are not changed.
    """

    batch_size: int | None
    """The default of :meth:`sample`, needed for iteration."""

    def add(self, data: Any) -> Any:
        """Store one row; returns its slot, or ``None`` where the writer refused it."""
        ...

    def extend(self, data: Any) -> torch.Tensor:
        """Store many rows.

        A 1-d storage takes every batch dimension of a TensorDict as rows: a rollout ``[N, T]`` gives ``N * T`` rows. A
        storage of ``ndim=2`` takes ``[N, T]`` as N lanes of T steps, and each call appends steps to all lanes.

        Returns:
            The slot of each row, int64 ``[rows]`` in the order of the data, -1 for a row that was not stored.
        """
        ...

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A batch drawn by the sampler, transformed and collated; with `return_info`, a pair of it and a dict."""
        ...

    def update_priority(self, index: Any, priority: Any, generation: Any = None) -> None:
        """Hand raw priorities of slots to the sampler; without effect unless it uses priorities.

        With `generation`, the "index_generation" of the sample, rows that were overwritten since are left out.
        """
        ...

    def empty(self) -> None:
        """Forget all rows."""
        ...

    def __len__(self) -> int:
        """The number of rows stored now."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Batches until the sampler has gone through the data once (for ever with an endless sampler)."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Rows, positions, priorities and generator as plain data; the values may share memory with the buffer."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Take over such a state, as copies; the next samples are those of the saved buffer."""
        ...

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state into folder `path`: raw tensors and JSON with a format number, replaced in one step."""
        ...

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read such a folder; the buffer does not depend on the files afterwards."""
        ...
