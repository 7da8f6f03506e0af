"""One TensorDict from what workers wrote into their slots; this is the copy that makes a batch the reader's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_collectors.process.slots import Filled
from rl_core.envs.columns import nest
from rl_core.envs.entries import put_entries
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["Piece", "assembled", "concatenated", "version_column"]


@dataclass(frozen=True)
class Piece:
    """A batch of one worker, still in its slot.

    Attributes:
        worker: whose.
        filled: what the worker said.
        tensors: in shared memory.
        batch_size: of its environment.
    """

    worker: int
    filled: Filled
    tensors: Mapping[Key, Tensor]
    batch_size: torch.Size

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return self.filled.gathered.steps

    @property
    def shape(self) -> torch.Size:
        """``[*B, T]``, T as asked for."""
        return torch.Size([*self.batch_size, self.filled.gathered.order.steps])


def assembled(pieces: Sequence[Piece], results: str | int | None = None) -> TensorDictBase:
    """A batch of its own memory.

    Args:
        pieces: of one worker or more.
        results: None for the batch ``[*B, T]`` of a single worker; "stack" for ``[N, *B, T]``; the number of a
            dimension to concatenate along.

    Raises:
        CollectorError: the workers' batches have different entries.
    """
    first = pieces[0]
    size = first.shape if results is None else torch.Size([len(pieces), *first.shape])
    keys = first.tensors.keys()
    for piece in pieces[1:]:
        if piece.tensors.keys() != keys:
            odd = sorted(map(str, piece.tensors.keys() ^ keys))
            raise CollectorError(
                f"the batches of workers {first.worker} and {piece.worker} differ in {', '.join(odd)}; all "
                "environments and policies must write the same entries"
            )
    leaves: dict[Key, Any] = {}
    for key in keys:
        values = [piece.tensors[key] for piece in pieces]
        leaves[key] = values[0].clone() if results is None else torch.stack(values)
    batch = nest(leaves, size, torch.device("cpu") if first.filled.on_device else None)
    for key, extra in first.filled.sizes.items():
        cast("TensorDictBase", batch.get(key)).batch_size = torch.Size([*size, *extra])
    _add_rest(batch, pieces, results)
    batch.names = [*([None] * (len(size) - 1)), "time"]
    return batch


def _add_rest(batch: TensorDictBase, pieces: Sequence[Piece], results: str | int | None) -> None:
    rests = [piece.filled.rest for piece in pieces]
    if rests[0] is None:
        return
    joined = rests[0] if results is None else cast("TensorDictBase", torch.stack(cast("Any", rests)))
    put_entries(batch, joined)


def concatenated(batch: TensorDictBase, dim: int) -> TensorDictBase:
    """A stack of workers' batches ``[N, ...]``, concatenated along a dimension of one of them."""
    dims = batch.ndim - 1
    if not -dims <= dim < dims:
        raise CollectorError(f"cat_results={dim}; a worker's batch has {dims} dimensions, the last of them time")
    dim %= dims
    order = [*range(1, dim + 1), 0, *range(dim + 1, batch.ndim)]
    joined = (batch.permute(order) if dim else batch).flatten(dim, dim + 1)
    joined.names = [*([None] * (dims - 1)), "time"]
    return joined


def version_column(pieces: Sequence[Piece], size: torch.Size) -> Tensor:
    """The version of the weights at each step: int64 of the batch's size, -1 where no step was taken."""
    rows = torch.full((len(pieces), size[-1]), -1)
    for row, piece in zip(rows, pieces, strict=True):
        for start, version in piece.filled.gathered.versions:
            row[start:] = version
        row[piece.steps :] = -1
    lead = size[:-1]
    if len(pieces) == 1:
        return rows[0].expand(size).clone()
    return rows.reshape(len(pieces), *(1,) * (len(lead) - 1), -1).expand(size).clone()
