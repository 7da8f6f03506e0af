"""Columns of parquet files as arrays; what is not a number is left out with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_buffers.datasets.errors import DatasetError
from rl_core.registry import missing_extra

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    if error.name not in ("pyarrow", "pyarrow.parquet"):
        raise
    raise missing_extra("pyarrow", "rl-buffers", "parquet") from error

__all__ = ["read_columns"]


def read_columns(files: Sequence[Path]) -> tuple[dict[str, Any], dict[str, str]]:
    """The columns of files with one schema, end to end.

    Returns:
        Arrays ``[R, ...]`` by name, lists of equal length becoming dimensions; and the columns that are left out, with
        the reason.

    Raises:
        DatasetError: a file is damaged, its columns are others than the first one's, or a column has gaps or lists of
            different lengths.
    """
    parts: dict[str, list[Any]] = {}
    left_out: dict[str, str] = {}
    for number, file in enumerate(files):
        table = _table(file)
        if number and set(table.column_names) != set(parts) | set(left_out):
            odd = sorted(set(table.column_names) ^ (set(parts) | set(left_out)))
            raise DatasetError(f"{file} and {files[0]} have different columns: {odd}")
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            reason = _unfit(column.type)
            if reason is None:
                parts.setdefault(name, []).append(_array(column, f"{file}: {name}"))
            else:
                left_out[name] = reason
    return {name: _joined(arrays, name) for name, arrays in parts.items()}, left_out


def _table(file: Path) -> Any:
    try:
        return pq.read_table(file, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"{file} cannot be read as parquet, it is damaged or incomplete: {error}. Fetch it again."
        ) from error


def _unfit(kind: Any) -> str | None:
    while _is_list(kind):
        kind = kind.value_type
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return None if numbers else f"it holds {'images or records' if pa.types.is_struct(kind) else kind}, not numbers"


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _array(column: Any, name: str) -> Any:
    """``[R, *lists, values]``."""
    shape = [len(column)]
    while True:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count:
            raise DatasetError(f"{name} has {column.null_count} rows without a value")
        if not _is_list(column.type):
            return column.to_numpy(zero_copy_only=False).reshape(shape)
        lengths = np.unique(pc.list_value_length(column).to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise DatasetError(f"{name} has lists of different lengths, {lengths.min()} to {lengths.max()}")
        shape.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()


def _joined(arrays: Sequence[Any], name: str) -> Any:
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise DatasetError(f"the files hold {name} in different shapes: {sorted(shapes)}")
    return np.concatenate(arrays)
