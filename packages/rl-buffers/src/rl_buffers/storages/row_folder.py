"""RowFolder: columns in files that processes map, one file per leaf, with a note of what the rows look like."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import torch
from torch import Tensor

from rl_buffers.rows import LeafSpec, RowSchema
from rl_buffers.sharing import lock_file
from rl_core.errors import ReplayBufferError

__all__ = ["Mapped", "RowFolder"]

_FORMAT = 1
_NOTE, _LOCK, _NUMBERS, _OWNER = "rows.json", "lock", "numbers", "owner"


class Mapped(NamedTuple):
    """Columns of a folder: the rows' structure, the lanes and one tensor ``[steps, *lanes, ...]`` per leaf."""

    schema: RowSchema
    lanes: tuple[int, ...]
    columns: list[Tensor]


class RowFolder:
    """A folder with one file of raw values per leaf.

    Space is reserved when the files are made, so that a full disk is an error then and not a crash at some later write.

    Args:
        path: the folder, made if needed; ``None`` makes a temporary one.
        existsok: whether files of earlier rows there may be overwritten.
        cleanup: whether the files are removed at the end of the process that made them; ``None``: if temporary.
        in_memory: make the temporary folder where files are memory (``/dev/shm``), if there is such a place.

    Raises:
        ReplayBufferError: the folder cannot be made, holds rows already, or another process writes there.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, existsok: bool, cleanup: bool | None, in_memory: bool = False
    ) -> None:
        temporary = path is None
        try:
            if path is None:
                place = "/dev/shm" if in_memory and os.path.isdir("/dev/shm") else None
                self.path = Path(tempfile.mkdtemp(prefix="rl-buffers-", dir=place))
            else:
                self.path = Path(path).absolute()
                self.path.mkdir(parents=True, exist_ok=True)
            if (self.path / _NOTE).exists() and not existsok:
                raise ReplayBufferError(
                    f"{self.path} holds the rows of another storage: choose another scratch_dir, or pass existsok=True "
                    "to overwrite them"
                )
            self._owned = self._own()
            (self.path / _NOTE).unlink(missing_ok=True)
        except OSError as error:
            raise _refused(Path(path or tempfile.gettempdir()), error) from error
        self._cleanup = temporary if cleanup is None else cleanup
        # Unlike weakref.finalize it also runs at the end of a worker process, which skips atexit.
        arguments = (self._owned, self.path, os.getpid(), self._cleanup, temporary)
        self.close = Finalize(self, _close, args=arguments, exitpriority=0)

    def _own(self) -> int:
        """The open file whose lock says that this process made the folder."""
        descriptor = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        if sys.platform != "win32" and not lock_file(descriptor, wait=False):
            owner = os.read(descriptor, 20).decode() or "unknown"
            os.close(descriptor)
            raise ReplayBufferError(
                f"process {owner} writes to a storage in {self.path} already: two writers would mix their rows. Choose "
                "another scratch_dir, or share one buffer between the processes (buffer.share())."
            )
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return descriptor

    @property
    def lock_path(self) -> Path:
        """The file that processes lock."""
        return self.path / _LOCK

    @property
    def numbers_path(self) -> Path:
        """The file of the numbers that processes share."""
        return self.path / _NUMBERS

    def create(self, schema: RowSchema, lanes: tuple[int, ...], steps: int) -> list[Tensor]:
        """Make the files.

        Raises:
            ReplayBufferError: the folder or the disk refuses; no file is left then.
        """
        made: list[Path] = []
        try:
            for leaf in schema.leaves:
                file = self._file(leaf)
                file.parent.mkdir(parents=True, exist_ok=True)
                made.append(file)
                _reserve(file, _bytes_of(leaf, lanes, steps))
            note = {"format": _FORMAT, "steps": steps, "lanes": list(lanes), "schema": schema.state_dict()}
            partial = self.path / f"{_NOTE}.part"
            partial.write_text(json.dumps(note), encoding="utf-8")
            partial.replace(self.path / _NOTE)
        except OSError as error:
            for file in made:
                file.unlink(missing_ok=True)
            needed = sum(_bytes_of(leaf, lanes, steps) for leaf in schema.leaves)
            raise _refused(self.path, error, needed) from error
        return self.open().columns

    def open(self) -> Mapped:
        """Map the files that some process made.

        Raises:
            ReplayBufferError: they are not there, or not as the note says.
        """
        try:
            note = json.loads((self.path / _NOTE).read_text(encoding="utf-8"))
            schema, lanes, steps = RowSchema.from_state_dict(note["schema"]), tuple(note["lanes"]), int(note["steps"])
            return Mapped(schema, lanes, [self._map(leaf, lanes, steps) for leaf in schema.leaves])
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ReplayBufferError(
                f"{self.path} holds no rows that can be mapped: {error}. They are removed when the process that made "
                "them ends, unless scratch_dir names a lasting folder."
            ) from error

    def _map(self, leaf: LeafSpec, lanes: tuple[int, ...], steps: int) -> Tensor:
        shape = (steps, *lanes, *leaf.shape)
        size = _bytes_of(leaf, lanes, steps)
        if size == 0:
            return torch.empty(shape, dtype=leaf.dtype)
        file = self._file(leaf)
        found = file.stat().st_size
        if found != size:  # from_file would lengthen it without a word
            raise ValueError(f"{file} has {found} bytes instead of {size}")
        return torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8).view(leaf.dtype).view(shape)

    def _file(self, leaf: LeafSpec) -> Path:
        names = leaf.path or ("tensor",)
        parts = [quote(name, safe=" ").replace(".", "%2E") for name in names]  # no name leads out of the folder
        return self.path.joinpath("rows", *parts[:-1], f"{parts[-1]}.memmap")

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self._owned, self._cleanup = state["path"], -1, False


def _bytes_of(leaf: LeafSpec, lanes: tuple[int, ...], steps: int) -> int:
    return torch.Size((steps, *lanes, *leaf.shape)).numel() * leaf.dtype.itemsize


def _reserve(file: Path, size: int) -> None:
    file.unlink(missing_ok=True)  # whoever maps an older file keeps it; a file that shrinks would crash them
    with open(file, "wb") as opened:
        if size and sys.platform == "linux":
            os.posix_fallocate(opened.fileno(), 0, size)
        else:
            opened.truncate(size)


def _refused(path: Path, error: OSError, needed: int = 0) -> ReplayBufferError:
    room = f" The rows need {needed / 2**20:.1f} MiB." if needed else ""
    return ReplayBufferError(
        f"{path} cannot hold a storage's rows: {error}.{room} Choose another scratch_dir, a smaller max_size, or "
        "LazyTensorStorage, which keeps rows in memory."
    )


def _close(descriptor: int, path: Path, process: int, cleanup: bool, temporary: bool) -> None:
    """Give up the folder; a forked child, which inherits the object, leaves it alone."""
    if os.getpid() != process:
        return
    if cleanup:
        for name in (_NOTE, _LOCK, _NUMBERS, _OWNER):
            (path / name).unlink(missing_ok=True)
        shutil.rmtree(path / "rows", ignore_errors=True)
        if temporary:
            shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)
