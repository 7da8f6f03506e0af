"""New episodes in some rows of what is being stepped, the others going on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.envs.container_runner import ContainerRunner
from rl_core.envs.row_runner import RowRunner
from rl_core.errors import CollectorError

__all__ = ["reset_rows_of", "row_mask"]


def reset_rows_of(runner: RowRunner | ContainerRunner, rows: Tensor) -> None:
    """Reset rows where the next run goes on.

    Args:
        runner: what steps the environment.
        rows: bool ``[*B]``.
    """
    if bool(rows.all()) or not runner.state_dict():
        runner.reset()
        return
    if isinstance(runner, ContainerRunner):
        carry = runner.carry
        assert isinstance(carry, TensorDictBase)
        for group in runner.env.end_groups:
            flag = rows.reshape(*rows.shape, *(1,) * (len(group.shape) - rows.ndim)).expand(group.shape)
            carry.set(group.reset, flag.to(carry.get(group.done).device))
        runner.carry = runner.env.reset(carry)
        return
    mask = rows.numpy()
    runner.program.reset(0, mask)
    for key in runner.env.done_keys:
        runner.columns[key][0][mask] = False


def row_mask(index: int | Sequence[int] | Tensor, rows: int) -> Tensor:
    """Rows as a bool mask ``[rows]``, from their numbers or from a mask.

    Raises:
        CollectorError: there is no such row.
    """
    given = torch.as_tensor(index)
    if given.dtype is torch.bool:
        if given.numel() != rows:
            raise CollectorError(f"reset got a mask of {given.numel()} rows; {rows} environments step together")
        return given.flatten()
    if given.numel() and not (int(given.min()) >= 0 and int(given.max()) < rows):
        raise CollectorError(f"reset got the rows {given.tolist()}; there are rows 0 to {rows - 1}")
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[given] = True
    return mask
