"""From the columns of a D4RL file to transitions.

The file has one row per step, "observations", "actions", "rewards", "terminals" and mostly "timeouts"; newer ones also
"next_observations". Without these an observation follows from the next row, so that the last one of each episode is
not there, unless "observations" is longer: by one row (the last of the file), or by one for each episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_buffers.datasets.alignment import Aligned, Steps, align, check_missing_last, find_ends
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.layout import RESERVED, Leaves, as_tensor, ends_of, flag_column, prefixed
from rl_buffers.datasets.report import DatasetReport

__all__ = ["D4RLOptions", "transitions_of"]

_NEEDED = ("actions", "observations", "rewards", "terminals")


@dataclass(frozen=True, kw_only=True)
class D4RLOptions:
    """How a file is read; :class:`~rl_buffers.D4RLExperienceReplay` documents the fields."""

    use_truncated_as_done: bool = True
    terminate_on_end: bool | None = None
    missing_last: str = "drop"
    max_episode_steps: int | None = None
    float_dtype: torch.dtype | None = torch.float32

    def __post_init__(self) -> None:
        check_missing_last(self.missing_last)
        if self.terminate_on_end is False and self.missing_last == "repeat":
            raise DatasetError(
                "terminate_on_end=False drops the last row of each timed-out episode: leave out missing_last='repeat'"
            )
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise DatasetError(f"max_episode_steps is at least 1, got {self.max_episode_steps}")


@dataclass
class _File:
    """What is found out about a file while its columns are read."""

    source: str
    rows: int
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def transitions_of(
    columns: Mapping[str, Any], options: D4RLOptions, source: str
) -> tuple[Leaves, DatasetReport, dict[str, Any]]:
    """The transitions of a file, the report and the file's metadata.

    Args:
        columns: the file's arrays by name, groups separated by "/".
        options: how to read them.
        source: the file's name, for errors and the report.

    Raises:
        DatasetError: a column is missing, or has another number of rows than the rest.
    """
    observations, following = _observations(columns, "observations"), _observations(columns, "next_observations")
    lacking = [name for name in _NEEDED if name not in columns and not (name == "observations" and observations)]
    if lacking:
        raise DatasetError(f"{source} lacks {', '.join(lacking)}; it has {', '.join(sorted(columns)) or 'nothing'}")
    file = _File(source, int(np.shape(columns["rewards"])[0]) if np.ndim(columns["rewards"]) else 0)
    if file.rows == 0:
        raise DatasetError(f"{source} has no row")
    dtype = options.float_dtype
    current = {path: as_tensor(value, "/".join(path), dtype) for path, value in observations.items()}
    later = {path: as_tensor(value, "/".join(path), dtype) for path, value in following.items()}
    steps, place = _steps(columns, options, file, current, later)
    aligned = align(steps, options.missing_last)
    rows = aligned.rows
    reward = as_tensor(columns["rewards"], "rewards", dtype or torch.float32).reshape(file.rows, -1)
    if reward.shape[1] != 1:
        raise DatasetError(f"{source}: 'rewards' has {reward.shape[1]} values per row, expected one")
    leaves = {path: leaf.index_select(0, place[rows]) for path, leaf in current.items()}
    leaves["action",] = as_tensor(columns["actions"], "actions", dtype).index_select(0, rows)
    leaves |= prefixed(_next(current, later, place, aligned), "next")
    leaves["next", "reward"] = reward.index_select(0, rows)
    leaves |= ends_of(aligned, truncated_is_done=options.use_truncated_as_done)
    leaves |= _infos(columns, file, rows, dtype)
    if not options.use_truncated_as_done:
        file.notes.append("time limits and cuts are not marked in 'truncated' and 'done' (use_truncated_as_done=False)")
    report = DatasetReport.of(source, aligned.tally, file.left_out, tuple(file.notes))
    return leaves, report, _metadata(columns, file.rows)


def _observations(columns: Mapping[str, Any], name: str) -> dict[tuple[str, ...], Any]:
    """A plain column as "observation", those of a group by their own names."""
    if name in columns:
        return {("observation",): columns[name]}
    found = {tuple(key.split("/")[1:]): value for key, value in columns.items() if key.startswith(f"{name}/")}
    taken = [path[0] for path in found if path[0] in RESERVED]
    if taken:
        raise DatasetError(f"the observations have a part named {taken[0]!r}, which means something else in a dataset")
    return found


def _steps(
    columns: Mapping[str, Any], options: D4RLOptions, file: _File, current: Leaves, later: Leaves
) -> tuple[Steps, Tensor]:
    """The end flags, and for each row the place of its observation."""
    for name in ("actions", "terminals", "timeouts"):
        if name in columns:
            _check_rows(file, name, np.shape(columns[name]), {file.rows: "one per reward"})
    terminated = flag_column(columns["terminals"], "terminals")
    if "timeouts" in columns:
        truncated = flag_column(columns["timeouts"], "timeouts")
    else:
        truncated = _assumed_limits(terminated, options.max_episode_steps, file)
    timed_out = truncated & ~terminated
    if options.terminate_on_end:
        terminated = terminated | truncated
    begins = _breaks(current, later, terminated | truncated, file)
    plain = Steps(terminated, truncated, begins)
    place, known = _places(current, later, plain, file)
    if options.terminate_on_end is False:
        known = (torch.zeros_like(terminated) if known is None else known) & ~timed_out
    return plain._replace(known_next=known), place


def _assumed_limits(terminated: Tensor, limit: int | None, file: _File) -> Tensor:
    if limit is None:
        file.notes.append(
            "the file has no 'timeouts': an episode that a time limit ended cannot be told from one that goes on; "
            "give max_episode_steps"
        )
        return torch.zeros_like(terminated)
    file.notes.append(f"the file has no 'timeouts': episodes of {limit} rows count as ended by a time limit")
    truncated, length = torch.zeros_like(terminated), 0
    for row, end in enumerate(terminated.tolist()):
        length += 1
        truncated[row] = length == limit and not end
        length = 0 if end or length == limit else length
    return truncated


def _breaks(current: Leaves, later: Leaves, flagged: Tensor, file: _File) -> Tensor | None:
    """Rows whose observation is not the one that the row before says comes next: an episode begins with them."""
    if not later:
        return None
    if current.keys() != later.keys():
        raise DatasetError(f"{file.source}: 'observations' and 'next_observations' have different parts")
    for path, leaf in [*current.items(), *later.items()]:
        _check_rows(file, "(next_)observations " + "/".join(path), leaf.shape, {file.rows: "one per reward"})
    begins = torch.zeros(file.rows, dtype=torch.bool)
    for path, leaf in current.items():
        same = torch.isclose(leaf[1:].double(), later[path][:-1].double(), rtol=1e-3, atol=1e-4, equal_nan=True)
        begins[1:] |= ~same.reshape(file.rows - 1, -1).all(-1)
    begins[1:] &= ~flagged[:-1]
    found = int(begins.sum())
    if found * 2 > file.rows:
        file.notes.append(
            "'next_observations' differ from the following rows throughout: ends without a flag are not found"
        )
        return None
    if found:
        file.notes.append(f"{found} episodes end without a flag, found by their next observation")
    return begins


def _places(current: Leaves, later: Leaves, steps: Steps, file: _File) -> tuple[Tensor, Tensor | None]:
    """Where each row's observation is, and for which rows the one after an end is there too."""
    place, known = torch.arange(file.rows), torch.ones(file.rows, dtype=torch.bool)
    if later:
        return place, known
    ends = find_ends(steps)
    episodes = int(ends.sum())
    allowed = {
        file.rows: "one per reward",
        file.rows + 1: "one more for the file",
        file.rows + episodes: f"one more for each of {episodes} episodes",
    }
    lengths = {leaf.shape[0] for leaf in current.values()}
    for path, leaf in current.items():
        _check_rows(file, "observations " + "/".join(path), leaf.shape, allowed)
    if len(lengths) > 1:
        raise DatasetError(f"{file.source}: the parts of the observations have {sorted(lengths)} rows")
    extra = lengths.pop() - file.rows
    if extra == episodes:
        return place + ends.cumsum(0) - ends.long(), known
    if extra == 1:
        known[:-1] = False
        return place, known
    return place, None


def _next(current: Leaves, later: Leaves, place: Tensor, aligned: Aligned) -> Leaves:
    rows = aligned.rows
    if not later:
        places = place[rows] + (~aligned.repeated).long()
        return {path: leaf.index_select(0, places) for path, leaf in current.items()}
    return {path: leaf.index_select(0, rows) for path, leaf in later.items()}


def _infos(columns: Mapping[str, Any], file: _File, rows: Tensor, dtype: torch.dtype | None) -> Leaves:
    """Columns of the group "infos" as entries of "info"; others that are not used are reported."""
    leaves: Leaves = {}
    used = {*_NEEDED, "timeouts", "next_observations"}
    for name, value in columns.items():
        head, _, rest = name.partition("/")
        array = np.asarray(value)
        if name in used or head in ("observations", "next_observations", "metadata") or array.ndim == 0:
            continue
        if head != "infos" or not rest:
            file.left_out[name] = "not a column of the format"
        elif array.dtype.kind not in "biuf":
            file.left_out[name] = f"it holds {array.dtype}"
        elif array.shape[0] != file.rows:
            file.left_out[name] = f"it has {array.shape[0]} rows, rewards have {file.rows}"
        else:
            leaves |= prefixed({tuple(rest.split("/")): as_tensor(array, name, dtype).index_select(0, rows)}, "info")
    return leaves


def _metadata(columns: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Numbers and texts that stand beside the rows."""
    found: dict[str, Any] = {}
    for name, value in columns.items():
        if np.ndim(value) == 0:
            plain = value.item() if isinstance(value, np.generic) else value
            plain = plain.decode("utf-8", "replace") if isinstance(plain, bytes) else plain
            if isinstance(plain, str | bool | int | float):
                found[name.removeprefix("metadata/")] = plain
    return found


def _check_rows(file: _File, name: str, shape: Any, allowed: Mapping[int, str]) -> None:
    found = int(shape[0]) if len(shape) else 0
    if found not in allowed:
        wanted = ", or ".join(f"{rows} ({why})" for rows, why in allowed.items())
        raise DatasetError(f"{file.source}: {name!r} has {found} rows, expected {wanted}")
