"""Batches in which some rows go on and others stand still."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.envs.partial_reset import ResetRequest, merge_reset
from rl_core.errors import EnvError

__all__ = ["as_rows", "choose", "rows_kept"]


def rows_kept(rows: Tensor) -> ResetRequest:
    """A choice for :func:`choose`: the rows of a mask ``[*B]`` keep their old values."""
    return ResetRequest({(): ~rows.unsqueeze(-1)})


def choose(kept: ResetRequest, old: TensorDictBase, new: TensorDictBase) -> TensorDictBase:
    """The new values, and the old ones in the rows that are kept."""
    return merge_reset(old, new, kept)


def as_rows(condition: bool | Tensor, tensordict: TensorDictBase, what: str) -> Tensor:
    """A bool, or flags ``[*B]`` or ``[*B, 1]``, as a mask of rows ``[*B]``.

    Raises:
        EnvError: the shape is another one.
    """
    flags = torch.as_tensor(condition, dtype=torch.bool, device=tensordict.device)
    size = tensordict.batch_size
    if flags.shape == (*size, 1):
        flags = flags.squeeze(-1)
    if flags.ndim and flags.shape != size:
        raise EnvError(
            f"{what} has shape {tuple(flags.shape)}; wanted one flag, or one for each row: {tuple(size)} or "
            f"{(*size, 1)}"
        )
    return flags.expand(size)
