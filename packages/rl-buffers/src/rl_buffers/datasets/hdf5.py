"""Columns of an hdf5 file, all of them as arrays, with errors that say what is wrong with the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_buffers.datasets.errors import DatasetError
from rl_core.registry import missing_extra

try:
    import h5py
except ModuleNotFoundError as error:
    if error.name != "h5py":
        raise
    raise missing_extra("h5py", "rl-buffers", "d4rl") from error

__all__ = ["read_columns"]


def read_columns(path: Path) -> dict[str, Any]:
    """Every dataset of the file by its name, groups and datasets separated by "/".

    Raises:
        DatasetError: the file is absent, no hdf5 file, or damaged.
    """
    columns: dict[str, Any] = {}

    def take(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            columns[name] = node[()]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(take)
    except (OSError, RuntimeError, KeyError) as error:
        kind = "is not there" if not path.exists() else "cannot be read as hdf5, it is damaged or incomplete"
        raise DatasetError(f"{path} {kind}: {error}. Remove it and fetch it again.") from error
    return columns
