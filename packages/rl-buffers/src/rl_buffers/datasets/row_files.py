"""Rows in a folder: one file of raw values per leaf and a JSON note, written in pieces, put in place in one step."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO
from urllib.parse import quote

import torch
from torch import Tensor

from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.layout import Leaves

__all__ = ["FORMAT", "RowWriter", "read_rows"]

FORMAT = 1
"""The number written into each folder; another one is not read."""

_NOTE = "rows.json"


class RowWriter:
    """Writes leaves piece by piece into a folder beside `target`, which takes its place at :meth:`commit`.

    Leaves may have different numbers of rows. Without a commit, after an error for one, nothing is left.

    Args:
        target: the folder to be.

    Raises:
        DatasetError: the folder cannot be written, or the disk is full.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._files: dict[tuple[str, ...], BinaryIO] = {}
        self._leaves: dict[tuple[str, ...], dict[str, Any]] = {}
        try:
            if target.exists() and not (target / _NOTE).is_file() and (not target.is_dir() or any(target.iterdir())):
                raise DatasetError(f"{target} exists and holds no rows: choose another place, or remove it first")
            target.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        except OSError as error:
            raise self._refused(error) from error

    def append(self, leaves: Mapping[tuple[str, ...], Tensor]) -> None:
        """Add rows; later pieces have the dtypes and row shapes of the first, and may have other leaves.

        Raises:
            DatasetError: they have not, or the disk refuses.
        """
        for path, leaf in leaves.items():
            self._check(path, leaf)
            raw = leaf.detach().contiguous()
            self._leaves[path]["rows"] += leaf.shape[0]
            if raw.numel():
                try:
                    self._open(path).write(raw.reshape(-1).view(torch.uint8).numpy().data)
                except OSError as error:
                    raise self._refused(error) from error

    def commit(self, note: Mapping[str, Any]) -> None:
        """Put the folder in its place, instead of one that is there.

        Args:
            note: JSON data that are kept with the rows.
        """
        try:
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            leaves = [{"path": list(path), **leaf} for path, leaf in self._leaves.items()]
            text = json.dumps({"format": FORMAT, "leaves": leaves, "note": note})
            (self._folder / _NOTE).write_text(text, encoding="utf-8")
            self._folder.chmod(0o755)
            _replace(self._folder, self.target)
        except OSError as error:
            raise self._refused(error) from error

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            with suppress(OSError):  # what could not be flushed is thrown away in the next line
                file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _check(self, path: tuple[str, ...], leaf: Tensor) -> None:
        found = {"dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(leaf.shape[1:])}
        first = self._leaves.setdefault(path, {**found, "rows": 0})
        if {name: first[name] for name in found} != found:
            raise DatasetError(
                f"{'.'.join(path)} is {found['dtype']} {found['shape']} per row here and {first['dtype']} "
                f"{first['shape']} in earlier parts: all parts of a dataset have one structure"
            )

    def _open(self, path: tuple[str, ...]) -> BinaryIO:
        if path not in self._files:
            self._files[path] = (self._folder / _file_name(path)).open("wb")
        return self._files[path]

    def _refused(self, error: OSError) -> DatasetError:
        size = sum(leaf["rows"] * _row_bytes(leaf) for leaf in self._leaves.values())
        room = f" after {size / 2**20:.1f} MiB" if size else ""
        return DatasetError(
            f"{self.target} cannot be written{room}: {error}. Nothing is left of the attempt; name another folder "
            "(root=...), or make room."
        )


def read_rows(folder: Path) -> tuple[Leaves, dict[str, Any]]:
    """Map what a :class:`RowWriter` wrote; changes of the tensors do not reach the files.

    Returns:
        The leaves, and the note.

    Raises:
        DatasetError: there is nothing, or it is damaged or of another format.
    """
    try:
        text = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        if text["format"] != FORMAT:
            raise DatasetError(f"{folder} has format {text['format']}, this version reads {FORMAT}")
        leaves = {tuple(leaf["path"]): _map(folder, leaf) for leaf in text["leaves"]}
        return leaves, dict(text["note"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{folder} holds no rows that can be read: {error}") from error


def _map(folder: Path, leaf: Mapping[str, Any]) -> Tensor:
    dtype, shape = getattr(torch, leaf["dtype"]), (leaf["rows"], *leaf["shape"])
    size = leaf["rows"] * _row_bytes(leaf)
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    file = folder / _file_name(tuple(leaf["path"]))
    if file.stat().st_size != size:
        raise ValueError(f"{file.name} has {file.stat().st_size} bytes instead of {size}")
    return torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8).view(dtype).view(shape)


def _file_name(path: tuple[str, ...]) -> str:
    return ".".join(quote(name, safe="").replace(".", "%2E") for name in path) + ".bin"


def _row_bytes(leaf: Mapping[str, Any]) -> int:
    return math.prod(leaf["shape"]) * getattr(torch, leaf["dtype"]).itemsize


def _replace(folder: Path, target: Path) -> None:
    """Let `folder` take the place of `target`; whoever maps the old files keeps them."""
    if not target.exists():
        folder.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    try:
        target.rename(aside / "rows")
        try:
            folder.rename(target)
        except OSError:
            (aside / "rows").rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
