"""From the columns of a LeRobot dataset to transitions.

One row per frame, with "episode_index" and "frame_index" (from 0 without gaps in each episode), "observation.*",
"action", and where the task has them "next.reward", "next.done" and others of "next.*". The observation after an
episode's last frame is not stored, and demonstrations mostly end without a flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_buffers.datasets.alignment import Aligned, Steps, align
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.layout import Leaves, as_tensor, ends_of, flag_column, prefixed
from rl_buffers.datasets.report import DatasetReport
from rl_core.keys import Key, as_path

__all__ = ["KeyMap", "transitions_of"]

KeyMap = Mapping[str, "Key | None"]
"""Columns and the keys that they get; ``None`` leaves one out."""

_FLAGS = ("next.done", "next.terminated", "next.truncated")


def transitions_of(
    columns: Mapping[str, Any],
    source: str,
    *,
    key_map: KeyMap | None = None,
    missing_last: str = "drop",
    float_dtype: torch.dtype | None = torch.float32,
    left_out: Mapping[str, str] | None = None,
) -> tuple[Leaves, DatasetReport]:
    """The transitions and the report.

    Args:
        columns: ``[R, ...]`` by name.
        source: what they are of, for errors and the report.
        key_map: keys of columns; by default dots separate the parts of a key.
        missing_last: "drop" or "repeat".
        float_dtype: what floating-point columns are cast to.
        left_out: columns that could not be read, for the report.

    Raises:
        DatasetError: a column is missing, or has another number of rows.
    """
    keys = _keys(columns, key_map or {}, source)
    data = {name: as_tensor(value, f"{source}: {name}", float_dtype) for name, value in columns.items()}
    rows = {name: leaf.shape[0] if leaf.ndim else 0 for name, leaf in data.items()}
    if len(set(rows.values())) > 1:
        raise DatasetError(f"{source}: columns have different numbers of rows: {rows}")
    data, begins, notes = _in_order(data, source)
    terminated, truncated, ends_noted = _flags(data, begins)
    notes += ends_noted
    aligned = align(Steps(terminated, truncated, begins), missing_last)
    gone = dict(left_out or {})
    leaves: Leaves = {}
    for name, path in keys.items():
        if path is None:
            gone[name] = "key_map says so"
        elif name not in _FLAGS:
            leaves |= _entry(name, path, data[name], aligned)
    if "next.reward" not in data:
        notes.append("there is no 'next.reward': the transitions have no reward")
    leaves |= ends_of(aligned)
    return leaves, DatasetReport.of(source, aligned.tally, gone, tuple(notes))


def _keys(columns: Mapping[str, Any], key_map: KeyMap, source: str) -> dict[str, tuple[str, ...] | None]:
    have = ", ".join(sorted(columns)) or "nothing"
    if not any(name.startswith("observation") for name in columns) or "episode_index" not in columns:
        raise DatasetError(f"{source} lacks 'episode_index' or columns of 'observation'; it has {have}")
    unknown = [name for name in key_map if name not in columns]
    if unknown:
        raise DatasetError(f"key_map names {unknown}, which {source} does not have; it has {have}")
    keys: dict[str, tuple[str, ...] | None] = {}
    for name in columns:
        key = key_map.get(name, tuple(name.split(".")))
        keys[name] = None if key is None else as_path(key)
    paths = [path for path in keys.values() if path is not None]
    clash = next((a for a in paths for b in paths if a is not b and a == b[: len(a)]), None)
    if clash is not None:
        raise DatasetError(f"two columns are to stand at {clash}: give them keys of their own with key_map=...")
    return keys


def _in_order(data: dict[str, Tensor], source: str) -> tuple[dict[str, Tensor], Tensor, list[str]]:
    """The rows by episode and frame, and where episodes begin; frames that are missing split one."""
    episode = data["episode_index"].reshape(-1).long()
    frame = data["frame_index"].reshape(-1).long() if "frame_index" in data else None
    if episode.numel() == 0:
        raise DatasetError(f"{source} has no row")
    if frame is not None:
        order = torch.from_numpy(np.lexsort((frame.numpy(), episode.numpy())))
        data = {name: leaf.index_select(0, order) for name, leaf in data.items()}
        episode, frame = episode[order], frame[order]
    begins = torch.ones(episode.numel(), dtype=torch.bool)
    begins[1:] = episode[1:] != episode[:-1]
    if frame is None:
        return data, begins, []
    step = frame.diff()
    twice = ((step == 0) & ~begins[1:]).nonzero().flatten()
    if twice.numel():
        row = int(twice[0])
        raise DatasetError(f"{source}: frame {int(frame[row])} of episode {int(episode[row])} is there twice")
    gaps = (step != 1) & ~begins[1:]
    begins[1:] |= gaps
    found = int(gaps.sum())
    return data, begins, [f"frames are missing at {found} places, which split their episodes"] if found else []


def _flags(data: Mapping[str, Tensor], begins: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    none = torch.zeros_like(begins)
    done, terminated, truncated = (flag_column(data[name], name) if name in data else None for name in _FLAGS)
    cut = none if truncated is None else truncated
    if terminated is not None:
        return terminated, cut, []
    if done is None:
        return none, cut, ["there is no 'next.done': nothing tells how an episode ends"]
    note = "'next.done' counts as a termination" + ("" if truncated is None else " unless 'next.truncated' is set")
    return done & ~cut, cut, [note]


def _entry(name: str, path: tuple[str, ...], leaf: Tensor, aligned: Aligned) -> Leaves:
    """A column at its key, and an observation also under "next"."""
    rows = aligned.rows
    if name.startswith("next."):
        leaf = leaf.reshape(leaf.shape[0], -1) if leaf.ndim == 1 else leaf
        return {path: leaf.index_select(0, rows)}
    found: Leaves = {path: leaf.index_select(0, rows)}
    if name == "observation" or name.startswith("observation."):
        found |= prefixed({path: leaf.index_select(0, rows + (~aligned.repeated).long())}, "next")
    return found
