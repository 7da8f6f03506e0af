"""A wide CSV file that can be cut off at any moment: one row per step, a stable header, always complete on disk.

The row of the current step is rewritten in place while metrics of that step arrive. A metric that was never seen before
rewrites the file with one more column (into a second file that then takes the name), so earlier rows gain an empty
cell and are never shifted.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TextIO

__all__ = ["MetricsFile", "read_metrics"]

_STEP = "step"


def read_metrics(path: str | Path) -> dict[str, list[float]]:
    """The columns of a metrics file; a cell that was not logged is NaN.

    A last row that a killed process left incomplete is left out.

    Args:
        path: a file written by :class:`MetricsFile` (``metrics.csv`` of a run).
    """
    header, rows = _read(Path(path))
    return {name: [float(row[i]) if row[i] else math.nan for row in rows] for i, name in enumerate(header)}


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows:
        return [_STEP], []
    header = rows[0]
    if header[0] != _STEP:
        raise ValueError(f"{path} is no metrics file: its first column is {header[0]!r}, expected {_STEP!r}")
    return header, [row for row in rows[1:] if len(row) == len(header)]


class MetricsFile:
    """Writes metrics by step; the file is whole after every call.

    Args:
        path: the file; an existing one is continued.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.csv"
        >>> file = MetricsFile(path)
        >>> file.write({"loss": 0.5}, step=100); file.write({"return": 9}, step=200); file.close()
        >>> print(path.read_text(), end="")
        step,loss,return
        100,0.5,
        200,,9.0
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._columns: list[str] = [_STEP]
        self._row: dict[str, float] = {}
        self._step: int | None = None
        self._start = 0  # where the current step's row begins, in bytes
        if self.path.exists() and self.path.stat().st_size > 0:
            header, rows = _read(self.path)
            self._rewrite(header, rows)
        else:
            self._rewrite([_STEP], [])

    @property
    def columns(self) -> list[str]:
        """The names of the metrics written so far, in the file's order."""
        return self._columns[1:]

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Add metrics of one step; several calls with one step share a row."""
        step = int(step)
        if step != self._step:
            self._file.seek(0, os.SEEK_END)
            self._start, self._row, self._step = self._file.tell(), {}, step
        self._row.update(metrics)
        new = [name for name in metrics if name not in self._columns]
        if new:
            self._add_columns(new)
        cells = [str(step), *(_cell(self._row.get(name)) for name in self._columns[1:])]
        self._file.seek(self._start)
        self._file.write(_line(cells))
        self._file.truncate()
        self._file.flush()

    def drop_after(self, step: int) -> None:
        """Forget the rows beyond ``step``: they belong to work that a resumed run does again."""
        self._rows_where(lambda row: int(row[0]) <= step)

    def close(self) -> None:
        """Close the file; it is complete before, too."""
        self._file.close()

    def _rows_where(self, keep: Callable[[list[str]], bool]) -> None:
        self._file.close()
        header, rows = _read(self.path)
        self._step, self._row = None, {}
        self._rewrite(header, [row for row in rows if keep(row)])

    def _add_columns(self, names: list[str]) -> None:
        self._file.truncate(self._start)  # the current row is written again by the caller
        self._file.close()
        header, rows = _read(self.path)
        self._rewrite([*header, *names], [row + [""] * len(names) for row in rows])
        self._start = self._file.tell()

    def _rewrite(self, header: list[str], rows: Iterable[list[str]]) -> None:
        draft = self.path.with_name(self.path.name + ".draft")
        with draft.open("w", newline="", encoding="utf-8") as file:
            file.write(_line(header))
            file.writelines(_line(row) for row in rows)
        os.replace(draft, self.path)
        self._columns = header
        self._file: TextIO = self.path.open("r+", newline="", encoding="utf-8")
        self._file.seek(0, os.SEEK_END)


def _cell(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _line(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
