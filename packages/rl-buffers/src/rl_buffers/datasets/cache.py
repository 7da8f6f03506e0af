"""The cache of converted datasets: the second time a dataset is asked for, its files are not read but mapped."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.layout import Leaves
from rl_buffers.datasets.locking import locked
from rl_buffers.datasets.report import DatasetReport
from rl_buffers.datasets.row_files import RowWriter, read_rows

__all__ = ["Converted", "Source", "converted", "default_root"]

Origin = Literal["files", "cache"]
_Written = tuple[DatasetReport, Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """What a dataset is converted from.

    Attributes:
        reader: the kind of dataset, such as "d4rl".
        name: its name, as the user knows it.
        options: what else the rows depend on, as JSON data.
        place: the file or folder that it is in.
        files: the files that are read.
    """

    reader: str
    name: str
    options: Mapping[str, Any]
    place: Path
    files: Sequence[Path]

    def stamp(self) -> list[list[Any]]:
        """Path, size and time of each file: another one tells that a file was changed."""
        try:
            stats = [(path, path.stat()) for path in self.files]
        except OSError as error:
            raise DatasetError(f"{self.name} cannot be read: {error}") from error
        return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]

    def folder(self, root: Path) -> Path:
        """Where its rows are kept: one folder per name, place of the files and options."""
        where = [self.reader, self.name, dict(self.options), str(self.place)]
        digest = hashlib.sha256(json.dumps(where, sort_keys=True).encode()).hexdigest()[:12]
        name = re.sub(r"[^\w.-]+", "_", self.name).strip("._")[-60:] or "dataset"
        return root / "converted" / f"{name}-{digest}"


@dataclass(frozen=True)
class Converted:
    """A dataset's rows.

    Attributes:
        leaves: mapped from files, or in memory.
        report: what was read from the dataset's own files.
        metadata: what the files say about themselves.
        origin: "files" if they were read now, "cache" if an earlier conversion was mapped.
    """

    leaves: Leaves
    report: DatasetReport
    metadata: Mapping[str, Any]
    origin: Origin = "files"


def default_root(reader: str) -> Path:
    """Where a kind of dataset is kept: ``$XDG_CACHE_HOME/rl-buffers/<reader>``, by default under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rl-buffers" / reader


def converted(
    root: Path,
    source: Source,
    convert: Callable[[RowWriter], _Written],
    again: bool = False,
) -> Converted:
    """The rows of a source from the cache, or converted now if they are not there or its files were changed.

    Args:
        root: the folder of the cache.
        source: what to convert.
        convert: writes the rows, and returns the report and the metadata.
        again: convert in any case.

    Raises:
        DatasetError: the source cannot be read, or the cache cannot be written; nothing is left of it then.
    """
    folder, stamp = source.folder(root), source.stamp()
    found = None if again else _read(folder, stamp)
    if found is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.parent.parent / f".{folder.name}.lock"
        with locked(lock):
            found = None if again else _read(folder, stamp)  # another process may have made it in the meantime
            return found or _convert(folder, source, stamp, convert)
    except OSError as error:
        raise DatasetError(f"{root} cannot hold the rows of {source.name}: {error}. Name another: root=...") from error


def _convert(
    folder: Path, source: Source, stamp: list[list[Any]], convert: Callable[[RowWriter], _Written]
) -> Converted:
    with RowWriter(folder) as writer:
        report, metadata = convert(writer)
        if report.transitions == 0:
            raise DatasetError(f"no transition is left of {source.name}:\n{report}")
        writer.commit({"files": stamp, "report": report.as_dict(), "metadata": dict(metadata)})
    return Converted(read_rows(folder)[0], report, metadata)


def _read(folder: Path, stamp: list[list[Any]]) -> Converted | None:
    """The rows in a folder; ``None`` where there are none, or they are of other files, damaged or of another format."""
    if not folder.is_dir():
        return None
    try:
        leaves, note = read_rows(folder)
        if note["files"] != stamp:
            return None
        return Converted(leaves, DatasetReport.from_dict(note["report"]), note["metadata"], "cache")
    except (DatasetError, LookupError, TypeError):  # a cache is made again
        return None
