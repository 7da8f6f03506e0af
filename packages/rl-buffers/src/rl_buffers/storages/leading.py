"""Which leading dimensions of written data count rows, and how data are brought to one row of lanes after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from rl_buffers.rows import FlatRows, RowSchema
from rl_core.errors import ReplayBufferError

__all__ = ["Leading", "by_step", "leading_dims", "objects_by_step"]


class Leading(NamedTuple):
    """How the leading dimensions of one write are to be read.

    Attributes:
        rows: how many leading dimensions count rows.
        single: whether the data are one step, without a time dimension.
    """

    rows: int
    single: bool


def leading_dims(
    flat: FlatRows, batch: Sequence[int], row_dims: int | None, ndim: int, schema: RowSchema | None
) -> Leading:
    """Decide it.

    Args:
        flat: the data.
        batch: the dimensions that may count rows: a TensorDict's batch size, a tensor's whole shape.
        row_dims: how many the caller says do; ``None``: all of them.
        ndim: the storage's.
        schema: the rows' structure, ``None`` at the first write.

    Raises:
        ReplayBufferError: the data have too few dimensions, or too many.
    """
    if schema is not None:
        of_a_row = len(schema.row_batch) if flat.nodes else len(schema.leaves[0].shape if schema.is_tensor else ())
        found = len(batch) - of_a_row
    else:
        found = row_dims if row_dims is not None else (len(batch) if flat.nodes else ndim)
    wanted = found if row_dims is None else row_dims
    admitted = ndim - 1 if wanted == ndim - 1 and row_dims is not None else ndim
    flattens = ndim == 1 and wanted >= 1
    if wanted != found or len(batch) < wanted or not (flattens or wanted == admitted):
        raise _dims_error(batch, row_dims, ndim, schema)
    return Leading(wanted, wanted == ndim - 1)


def _dims_error(batch: Sequence[int], row_dims: int | None, ndim: int, schema: RowSchema | None) -> ReplayBufferError:
    row = list(schema.row_batch) if schema is not None else []
    names = ["time"] if ndim == 1 else [*(f"lane{i}" for i in range(ndim - 1)), "time"]
    if row_dims is not None and row_dims == ndim - 1:
        lanes = names[:-1] + [str(size) for size in row]
        want, other = f"add takes one step: batch size [{', '.join(lanes)}]", "use extend for several steps"
    else:
        rows = "one or more row dimensions" if ndim == 1 else f"[{', '.join(names)}]"
        want, other = (
            f"extend takes batch size {rows}" + (f" followed by {row}" if row else ""),
            "use add for a single row",
        )
    return ReplayBufferError(f"{want} (storage ndim={ndim}), got batch size {list(batch)}; {other}.")


def by_step(leaf: Tensor, dims: Leading, ndim: int) -> Tensor:
    """A leaf of the data as ``[steps, *lanes, ...]``."""
    if dims.single:
        return leaf.unsqueeze(0)
    if ndim == 1:
        return leaf if dims.rows == 1 else leaf.flatten(0, dims.rows - 1)
    return leaf.movedim(ndim - 1, 0)


def objects_by_step(rows: list[Any], dims: Leading, ndim: int, lanes: int) -> list[Any]:
    """Values that come first dimension slowest, so lanes before time, with the lanes of a step side by side."""
    if ndim == 1 or dims.single:
        return rows
    steps = len(rows) // lanes
    return [rows[lane * steps + step] for step in range(steps) for lane in range(lanes)]
