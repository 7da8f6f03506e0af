"""ImmutableDatasetWriter: the writer of a buffer that holds a dataset, which is not to be written to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_core.buffers import Span, Storage, Writer
from rl_core.errors import ReplayBufferError

__all__ = ["ImmutableDatasetWriter"]


class ImmutableDatasetWriter(Writer):
    """Raises where something is written.

    >>> from rl_buffers import ReplayBuffer, TensorStorage
    >>> import torch
    >>> buffer = ReplayBuffer(storage=TensorStorage(torch.arange(5)), writer=ImmutableDatasetWriter(), batch_size=2)
    >>> buffer.extend(torch.arange(2))
    Traceback (most recent call last):
        ...
    rl_core.errors.ReplayBufferError: 2 rows were to be written to a dataset, which is for reading: ...
    """

    def __init__(self) -> None:
        self.cursor: int | None = 0
        self.write_count = 0

    def extend(self, steps: int, storage: Storage, data: Any = None) -> list[Span]:
        """Always an error, but for rows that are in a storage already when it is handed to a buffer (no `data`)."""
        if data is None:
            self.write_count += steps
            return []
        raise ReplayBufferError(
            f"{steps} rows were to be written to a dataset, which is for reading: copy it into another buffer "
            "(other.extend(buffer[:])), or allow writes with buffer.set_writer(RoundRobinWriter())"
        )

    def empty(self) -> None:
        """Start over with an empty storage."""
        self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"cursor": 0, "write_count": self.write_count}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over the count."""
        self.write_count = int(state_dict["write_count"])
