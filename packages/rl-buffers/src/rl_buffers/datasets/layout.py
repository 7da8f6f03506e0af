"""The one layout of offline data: T transitions with explicit next, and the numbers of their episodes.

::

    observation, action, ...                                      [T, ...]
    ("next", "observation")                                       [T, ...], at an end the true last one
    ("next", "reward" | "done" | "terminated" | "truncated")      [T, 1]
    ("collector", "traj_ids")                                     [T]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_buffers.datasets.alignment import Aligned
from rl_buffers.datasets.errors import DatasetError

__all__ = ["RESERVED", "TRAJECTORY", "Leaves", "as_tensor", "as_tensordict", "ends_of", "flag_column", "prefixed"]

Leaves = dict[tuple[str, ...], Tensor]
"""Tensors by path, all with the same first dimension."""

TRAJECTORY = ("collector", "traj_ids")
RESERVED = ("action", "reward", "done", "terminated", "truncated", "next", "collector", "index")
"""Names at the root that have a meaning of their own, and which no part of an observation may have."""

_LARGER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}  # torch does little with these


def as_tensor(values: Any, name: str, float_dtype: torch.dtype | None) -> Tensor:
    """A file's column as a tensor of its own.

    Args:
        values: numbers or bools, ``[R, ...]``.
        name: the column's, for errors.
        float_dtype: what floating-point numbers are cast to; ``None`` keeps theirs.

    Raises:
        DatasetError: they are something else, or of different lengths.
    """
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise DatasetError(f"the rows of {name!r} have different shapes: {error}") from error
        if array.dtype.kind not in "biuf":
            raise DatasetError(f"{name!r} holds {array.dtype}, expected numbers or bools")
        array = array.astype(_LARGER.get(array.dtype.name, array.dtype.newbyteorder("=")), copy=False)
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return tensor.to(float_dtype) if float_dtype is not None and tensor.is_floating_point() else tensor


def flag_column(values: Any, name: str) -> Tensor:
    """A column of end flags as bool ``[R]``; numbers count as true unless they are 0.

    Raises:
        DatasetError: they are not one per row.
    """
    flags = as_tensor(values, name, None)
    if flags.numel() != flags.shape[0]:
        raise DatasetError(f"{name!r} has shape {list(flags.shape)}, expected one flag per row")
    return flags.reshape(-1) != 0


def ends_of(aligned: Aligned, first_trajectory: int = 0, truncated_is_done: bool = True) -> Leaves:
    """The end flags and the numbers of the episodes.

    Args:
        aligned: the transitions.
        first_trajectory: the number of the first episode.
        truncated_is_done: ``False`` marks terminations only.
    """
    terminated = aligned.terminated.unsqueeze(-1)
    truncated = aligned.truncated.unsqueeze(-1)
    truncated = truncated if truncated_is_done else torch.zeros_like(truncated)
    return {
        ("next", "done"): terminated | truncated,
        ("next", "terminated"): terminated,
        ("next", "truncated"): truncated,
        TRAJECTORY: aligned.trajectory + first_trajectory,
    }


def prefixed(leaves: Mapping[tuple[str, ...], Tensor], *prefix: str) -> Leaves:
    """The leaves one level further down."""
    return {(*prefix, *path): leaf for path, leaf in leaves.items()}


def as_tensordict(leaves: Mapping[tuple[str, ...], Tensor], row_batch: tuple[int, ...] = ()) -> TensorDict:
    """The leaves as nested TensorDicts with batch size ``[T, *row_batch]``."""
    rows = next(iter(leaves.values())).shape[0]
    data = TensorDict({}, [rows, *row_batch])
    for path, leaf in leaves.items():
        data.set(path if len(path) > 1 else path[0], leaf)
    return data
