"""The entries of ``info`` on rows: where each of them is written, bound once to the columns of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rl_core import Columns, NonTensor
from rl_core.errors import EnvError
from rl_envs.gym.info import ABSENT, BaseInfoDictReader, InfoEntry, default_info_dict_reader, lookup

__all__ = ["InfoRows", "VectorInfoRows", "info_of_each"]


class _Slot:
    """One entry and its column.

    Args:
        entry: what is read.
        columns: the columns of the batch.
        index: one environment of the batch; None for all of it.
    """

    def __init__(self, entry: InfoEntry, columns: Columns, index: int | None) -> None:
        self.entry = entry
        self.array = _rows(columns[entry.key], index)
        self.present = None if entry.present is None else _rows(columns[entry.present], index)
        self.shape = None if isinstance(entry.spec, NonTensor) else tuple(entry.spec.shape)
        self.default = _as_row(entry.default)

    def put(self, t: Any, value: Any) -> None:
        """Write what was found, or the default."""
        if self.present is not None:
            self.present[t] = value is not ABSENT
        if value is ABSENT:
            self.array[t] = self.default
            return
        value = _as_row(value)
        if self.shape is not None and np.shape(value) != self.shape:
            raise EnvError(
                f"the info {self.entry.key!r} has shape {np.shape(value)}; its spec says {self.shape}. Declare it so, "
                "or read it with a BaseInfoDictReader of your own that gives it one shape"
            )
        self.array[t] = value


class InfoRows:
    """Writes the infos of one environment.

    Args:
        readers: what to read.
        columns: the columns of the batch.
        index: the environment's place in the batch; None where it has no batch.
    """

    def __init__(self, readers: Sequence[BaseInfoDictReader], columns: Columns, index: int | None = None) -> None:
        self.named: list[tuple[default_info_dict_reader, list[_Slot]]] = []
        self.others: list[tuple[BaseInfoDictReader, list[_Slot]]] = []
        for reader in readers:
            slots = [_Slot(entry, columns, index) for entry in reader.entries]
            if isinstance(reader, default_info_dict_reader):
                self.named.append((reader, slots))
            else:
                self.others.append((reader, slots))

    def write(self, t: Any, info: dict[str, Any]) -> None:
        """The entries of row t."""
        for reader, slots in self.named:
            if reader.warn_undeclared:
                reader.notice(info)
            for slot in slots:
                slot.put(t, lookup(info, slot.entry.path))
        for other, slots in self.others:
            found = other.values(info)
            for slot in slots:
                slot.put(t, found.get(slot.entry.key, ABSENT))


class VectorInfoRows:
    """Writes the infos of a gymnasium vector environment: arrays by name, with a mask ``_name`` of who has it.

    Args:
        readers: what to read.
        columns: the columns of the batch.
        count: how many environments.
    """

    def __init__(self, readers: Sequence[BaseInfoDictReader], columns: Columns, count: int) -> None:
        self.rows = [InfoRows(readers, columns, row) for row in range(count)]
        self.readers = [reader for reader in readers if isinstance(reader, default_info_dict_reader)]
        self.slots = [_Slot(entry, columns, None) for reader in self.readers for entry in reader.entries]
        self.all_named = len(self.readers) == len(readers)
        self.arrays: list[np.ndarray] = []
        for reader in readers:
            for entry in reader.entries:
                self.arrays.append(columns[entry.key])
                if entry.present is not None:
                    self.arrays.append(columns[entry.present])

    def write(self, t: int, info: dict[str, Any], rows: np.ndarray | None = None) -> None:
        """The entries of time t, of all environments or of some (bool ``[N]``)."""
        if rows is not None or not self.all_named:
            for row in range(len(self.rows)) if rows is None else np.flatnonzero(rows).tolist():
                self.rows[row].write(t, _of_one(info, row))
            return
        for reader in self.readers:
            if reader.warn_undeclared:
                reader.notice({name: value for name, value in info.items() if name[:1] != "_"})
        for slot in self.slots:
            value, mask = _of_all(info, slot.entry.path)
            if slot.shape is None or (value is not ABSENT and np.shape(value)[1:] != slot.shape):
                for row, single in enumerate(self.rows):  # objects, or something that its own row will complain of
                    single.write(t, _of_one(info, row))
                return
            if value is ABSENT:
                slot.put(t, ABSENT)
                continue
            if mask is None or mask.all():
                slot.array[t] = value
                if slot.present is not None:
                    slot.present[t] = True
                continue
            slot.array[t] = slot.default
            slot.array[t][mask] = value[mask]
            if slot.present is not None:
                slot.present[t] = mask

    def write_final(self, t: int, info: dict[str, Any], row: int) -> None:
        """SAME_STEP: the infos of an episode's last step, which lie in "final_info"."""
        final = info.get("final_info")  # where it is not told, the infos at hand are those of the next episode
        single = _of_one(final, row) if isinstance(final, dict) else None if final is None else final[row]
        self.rows[row].write(t, single or {})


def _rows(array: np.ndarray, index: int | None) -> np.ndarray:
    return array if index is None else array[:, index]


def _as_row(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _of_all(info: dict[str, Any], path: Sequence[str]) -> tuple[Any, np.ndarray | None]:
    """The values of all environments, and of whom they are (None: of all)."""
    held: np.ndarray | None = None
    for name in path:
        if not isinstance(info, dict) or name not in info:
            return ABSENT, None
        mask = info.get(f"_{name}")
        if mask is not None:
            held = mask if held is None else held & mask
        info = info[name]
    return info, held


def info_of_each(info: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The infos of the single environments of a vector environment."""
    return [_of_one(info, row) for row in range(count)]


def _of_one(info: dict[str, Any], row: int) -> dict[str, Any]:
    """The info of one environment of a vector environment."""
    single: dict[str, Any] = {}
    for name, value in info.items():
        if name.startswith("_") and name[1:] in info:
            continue
        mask = info.get(f"_{name}")
        if mask is not None and not mask[row]:
            continue
        if isinstance(value, dict):
            single[name] = _of_one(value, row)
        elif isinstance(value, (np.ndarray, list, tuple)) and len(value) > row:
            single[name] = value[row]
    return single
