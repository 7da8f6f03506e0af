"""LazyMemmapStorage: rows in files that are mapped into memory, for buffers that are larger than it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from rl_buffers.storages.mapped import MappedStorage
from rl_buffers.storages.row_folder import RowFolder
from rl_core.errors import ReplayBufferError

__all__ = ["LazyMemmapStorage"]


class LazyMemmapStorage(MappedStorage):
    """Keeps TensorDict (or tensor) rows on disk, one file per leaf at ``<scratch_dir>/rows/<path>.memmap``.

    The operating system holds in memory what is used. The space is reserved at the first write, so a disk that is too
    small is an error then. It takes and gives rows as :class:`LazyTensorStorage` does.

    Args:
        max_size: capacity in rows; with ``ndim > 1`` rounded up to whole steps of all lanes.
        scratch_dir: the folder, one per storage; default: a temporary one, removed when the process ends.
        device: "cpu"; move samples with ``sample.to(device)`` or pinned memory.
        ndim: how many leading dimensions of the data count rows.
        existsok: whether rows of an earlier storage in `scratch_dir` are overwritten; else they are an error.
        compilable: accepted for TorchRL's scripts; it makes no difference here.
        shared_init: let several processes write from the start, see :meth:`rl_buffers.ReplayBuffer.share`.
        auto_cleanup: remove the files at the end of the process; default: only those of a temporary folder.

    Raises:
        ReplayBufferError: another device than the CPU, or the folder cannot be used: it holds other rows, another
            process writes there, or the file system refuses.

    >>> from rl_core.buffers import Span
    >>> storage = LazyMemmapStorage(4)
    >>> storage.write(storage.prepare(torch.arange(3)), [Span(0, 3, 0)])
    >>> storage.get(torch.tensor([2, 0]))
    tensor([2, 0])
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool | None = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        if device != "auto" and torch.device(device).type != "cpu":
            raise ReplayBufferError(
                f"files are mapped into main memory, not onto {device}: leave device out and move the samples, e.g. "
                "with a transform or sample.to(device)"
            )
        folder = RowFolder(scratch_dir, existsok=existsok, cleanup=auto_cleanup)
        super().__init__(max_size, device=torch.device("cpu"), ndim=ndim, folder=folder)
        if shared_init:
            self.share()

    @property
    def scratch_dir(self) -> Path:
        """The folder that holds the files."""
        return self.folder.path
