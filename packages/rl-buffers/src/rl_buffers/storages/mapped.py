"""MappedStorage: columns that may lie in files, which several processes map, and what follows from that."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from rl_buffers.rows import RowSchema
from rl_buffers.sent import SentTensor
from rl_buffers.sharing import READY, STEPS, SharedNumbers
from rl_buffers.storages.columns import ColumnStorage
from rl_buffers.storages.row_folder import RowFolder
from rl_core.errors import ReplayBufferError

__all__ = ["MappedStorage"]


class MappedStorage(ColumnStorage):
    """Columns in a folder of files, or in memory until :meth:`share` moves them there.

    A pickled storage with a folder is the folder's path: the copy maps the same rows. Unless the storage is shared, its
    copies (and forked processes) are for reading, since two writers would mix their rows.
    """

    def __init__(self, max_size: int, *, device: torch.device | None, ndim: int, folder: RowFolder | None) -> None:
        self._folder = folder
        self._numbers: SharedNumbers | None = None
        self._writer_process = os.getpid()
        super().__init__(max_size, device=device, ndim=ndim)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write too."""
        return self._numbers is not None

    def share(self) -> SharedNumbers:
        """Let other processes write too, each under the lock of :attr:`folder`; the rows there are stay.

        Returns:
            The numbers that the processes have in common.

        Raises:
            ReplayBufferError: the rows lie on another device, hold non-tensor entries, or the disk refuses.
        """
        if self._numbers is not None:
            return self._numbers
        self._check_writable()
        if self.device is not None and self.device.type != "cpu":
            raise ReplayBufferError(f"rows on {self.device} cannot be shared between processes: use device='cpu'")
        if self.schema is not None:
            _only_tensors(self.schema)
        numbers, filled = SharedNumbers(self.folder.numbers_path), self._filled[0]
        if self.schema is not None and not self._in_folder:
            moved = self.folder.create(self.schema, self._lane_shape, self.max_steps)
            for new, old in zip(moved, self._columns, strict=True):
                new[:filled].copy_(old[:filled])
            self._columns = moved
            self._bind()
        self._numbers, self._filled = numbers, numbers.at(STEPS)
        numbers[STEPS], numbers[READY] = filled, int(self.schema is not None)
        return numbers

    @property
    def folder(self) -> RowFolder:
        """Where the files are; a storage in memory gets a temporary one, in memory too where that can be."""
        if self._folder is None:
            self._folder = RowFolder(None, existsok=False, cleanup=True, in_memory=True)
            self._in_folder = False
        return self._folder

    _in_folder = True  # whether the columns are the folder's, where there are both

    def refresh(self) -> None:
        """Map the columns, if another process has made them by now; called under the lock."""
        if self._numbers is not None and self.schema is None and self._numbers[READY]:
            mapped = self.folder.open()
            self.device = torch.device("cpu")
            self._use(mapped.schema, mapped.lanes, mapped.columns)

    def _new_columns(self, schema: RowSchema, lanes: tuple[int, ...], steps: int) -> list[Tensor]:
        if self._folder is None:
            return [
                torch.empty((steps, *lanes, *leaf.shape), dtype=leaf.dtype, device=self.device)
                for leaf in schema.leaves
            ]
        if self._numbers is not None:
            _only_tensors(schema)
            if self._numbers[READY]:
                raise ReplayBufferError(
                    "the rows of a shared storage have another structure since they were shared: use a new buffer"
                )
        columns = self._folder.create(schema, lanes, steps)
        self._in_folder = True
        if self._numbers is not None:
            self._numbers[READY] = 1
        return columns

    def _check_writable(self) -> None:
        if self._folder is not None and self._numbers is None and self._writer_process != os.getpid():
            raise ReplayBufferError(
                f"this storage maps the rows of process {self._writer_process or 'another'}, for reading: two writers "
                "would mix their rows. Call buffer.share() in that process before the buffer is handed to others."
            )

    def close(self) -> None:
        """Forget the rows and remove what is to be removed; the storage cannot be used afterwards."""
        self._columns, self.schema = [], None
        self._bind()
        if self._folder is not None and self._folder.close is not None:
            self._folder.close()

    def _columns_to_send(self) -> list[SentTensor]:
        return [] if self._folder is not None else super()._columns_to_send()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._folder is not None:
            self._writer_process = 0
            if self.schema is not None:
                self._columns = self._folder.open().columns
                self._bind()


def _only_tensors(schema: RowSchema) -> None:
    if schema.objects:
        names = ", ".join(repr(".".join(path)) for path in schema.objects)
        raise ReplayBufferError(
            f"rows with entries that are no tensors ({names}) cannot be shared between processes: drop them with "
            "data.exclude(...), or encode them as numbers"
        )
