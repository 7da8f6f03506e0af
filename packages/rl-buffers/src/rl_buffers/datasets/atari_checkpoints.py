"""From the checkpoints of DQN's replay memory to transitions that point at frames.

A checkpoint is one file per column, ``$store$_observation_ckpt.N.gz`` and so on: a ring of single frames, of the action
and the reward that followed each, and of "terminal". Three rows of zeros stand before each episode. The frame after an
episode's last one is not there: the terminal transition keeps its own as the next observation, which no target reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_buffers.datasets.alignment import Steps, align
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.gzip_arrays import pieces_of, read_array, shape_of
from rl_buffers.datasets.layout import Leaves, as_tensor, ends_of, flag_column, prefixed
from rl_buffers.datasets.report import Tally
from rl_buffers.datasets.row_files import RowWriter

__all__ = ["COLUMNS", "checkpoints_in", "convert", "file_of", "optional_files"]

COLUMNS = ("observation", "action", "reward", "terminal")
_PADDING = 3  # rows of zeros before an episode


def file_of(folder: Path, column: str, number: int) -> Path:
    """Where a column of a checkpoint is."""
    store = "" if column == "add_count" else "$store$_"
    return folder / f"{store}{column}_ckpt.{number}.gz"


def checkpoints_in(folder: Path) -> list[int]:
    """The numbers of the checkpoints that are there."""
    found = (re.fullmatch(r"\$store\$_observation_ckpt\.(\d+)\.gz", path.name) for path in folder.glob("*.gz"))
    return sorted(int(match[1]) for match in found if match)


def optional_files(folder: Path, number: int) -> list[Path]:
    """The files of a checkpoint that need not be there, as far as they are."""
    path = file_of(folder, "add_count", number)
    return [path] if path.is_file() else []


class _Ring(NamedTuple):
    """A checkpoint's columns in the order of time, and where time begins in the file of frames."""

    action: Tensor
    reward: Tensor
    terminal: Tensor
    cursor: int
    filled: int


def convert(folder: Path, numbers: Sequence[int], missing_last: str, writer: RowWriter) -> Tally:
    """Write the rows and frames of checkpoints; none goes on in the next one.

    Raises:
        DatasetError: a file is absent or damaged, or has another number of rows than the rest.
    """
    tally, offset = Tally(), 0
    for number in numbers:
        ring = _read(folder, number)
        blank = _write_frames(file_of(folder, "observation", number), ring, writer)
        leaves, found = _transitions(ring, blank, offset, tally.episodes, missing_last)
        if found.transitions:
            writer.append(leaves)
        tally.add(found)
        offset += ring.filled
    return tally


def _read(folder: Path, number: int) -> _Ring:
    arrays = {name: read_array(file_of(folder, name, number)) for name in COLUMNS[1:]}
    rows = {name: int(np.shape(array)[0]) if np.ndim(array) else 0 for name, array in arrays.items()}
    rows["observation"] = shape_of(file_of(folder, "observation", number))[0]
    if len(set(rows.values())) > 1 or 0 in rows.values():
        raise DatasetError(f"checkpoint {number} in {folder} has columns of different lengths: {rows}")
    size = rows["action"]
    added = [int(np.asarray(read_array(path)).reshape(-1)[0]) for path in optional_files(folder, number)]
    filled = min(added[0], size) if added else size
    if filled == 0:
        raise DatasetError(f"checkpoint {number} in {folder} has no row")
    cursor = added[0] % size if added and added[0] > size else 0
    order = (torch.arange(filled) + cursor) % size
    action, reward = (as_tensor(arrays[name], name, torch.float32).index_select(0, order) for name in COLUMNS[1:3])
    terminal = flag_column(arrays["terminal"], "terminal").index_select(0, order)
    return _Ring(action.long(), reward.reshape(filled, 1), terminal, cursor, filled)


def _write_frames(path: Path, ring: _Ring, writer: RowWriter) -> Tensor:
    """The frames in the order of time; returns which are zeros only."""
    blank = []
    ranges = [(ring.cursor, ring.filled), (0, ring.cursor)] if ring.cursor else [(0, ring.filled)]
    for start, stop in ranges:
        for piece in pieces_of(path, start, stop):
            frames = as_tensor(piece, str(path), None)
            blank.append((frames == 0).reshape(frames.shape[0], -1).all(-1))
            writer.append({("frames", "pixels"): frames})
    return torch.cat(blank)


def _transitions(
    ring: _Ring, blank: Tensor, offset: int, first_episode: int, missing_last: str
) -> tuple[Leaves, Tally]:
    padding = _padding(ring, blank)
    kept = (~padding).nonzero().squeeze(-1)
    if kept.numel() == 0:
        raise DatasetError("a checkpoint holds nothing but zeros")
    terminal = ring.terminal[kept]
    aligned = align(Steps(terminal, torch.zeros_like(terminal)), missing_last)
    aligned.tally.drop("padding of zeros before an episode", int(padding.sum()))
    begins = torch.ones_like(terminal)
    begins[1:] = terminal[:-1]
    first = torch.where(begins, kept, 0).cummax(0).values  # places ascend
    rows = kept[aligned.rows]
    leaves: Leaves = {("action",): ring.action[rows], ("next", "reward"): ring.reward[rows]}
    leaves |= ends_of(aligned, first_episode)
    place = rows + offset
    frames: Leaves = {
        ("place",): place,
        ("next",): place + (~aligned.repeated).long(),
        ("first",): first[aligned.rows] + offset,
    }
    return prefixed(leaves, "rows") | prefixed(frames, "frames"), aligned.tally


def _padding(ring: _Ring, blank: Tensor) -> Tensor:
    """The rows of zeros that an episode begins with, three at most."""
    empty = blank & (ring.action == 0) & (ring.reward.squeeze(-1) == 0) & ~ring.terminal
    so_far = torch.ones_like(empty)
    so_far[1:] = ring.terminal[:-1]
    padding = torch.zeros_like(empty)
    for _ in range(_PADDING):
        new = so_far & empty
        padding |= new
        so_far = torch.zeros_like(empty)
        so_far[1:] = new[:-1]
    return padding
