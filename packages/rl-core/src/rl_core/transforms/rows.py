"""Row programs of transforms that map one entry to another: tensor functions on the rows' shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rl_core.envs.columns import Columns, RowProgram
from rl_core.errors import KeyMissingError
from rl_core.keys import Key

if TYPE_CHECKING:
    from rl_core.transforms.base import Transform

__all__ = ["chain", "entrywise_program"]


def entrywise_program(transform: Transform, before: Columns, after: Columns) -> RowProgram:
    """``_apply_transform`` on each in key's row, ``_inv_apply_transform`` on each action row."""
    carried: list[tuple[Tensor, Tensor]] = []
    results: list[tuple[Tensor, Tensor]] = []
    for key, out_key in zip(transform.in_keys, transform.out_keys, strict=True):
        pair = (_column(transform, before, key, "in_keys"), after.tensors[out_key])
        (carried if key in before.carried else results).append(pair)
    actions = [
        (_column(transform, after, out_key, "out_keys_inv"), before.tensors[key])
        for key, out_key in zip(transform.in_keys_inv, transform.out_keys_inv, strict=True)
    ]

    def step(t: int) -> None:
        for source, target in carried:
            target[t + 1] = transform._apply_transform(source[t + 1])
        for source, target in results:
            target[t] = transform._apply_transform(source[t])

    def reset(t: int, mask: np.ndarray | None) -> None:
        for source, target in carried:
            value = transform._apply_transform(source[t])
            if mask is None:
                target[t] = value
            else:
                rows = torch.from_numpy(mask)
                target[t][rows] = value[rows]

    def inverse(t: int) -> None:
        for source, target in actions:
            target[t] = transform._inv_apply_transform(source[t])

    return RowProgram(step, reset, inverse if actions else None)


def _column(transform: Transform, columns: Columns, key: Key, argument: str) -> Tensor:
    """The rows of a key that the transform reads.

    Raises:
        KeyMissingError: the environment has no such entry.
    """
    found = columns.tensors.get(key)
    if found is None:
        present = ", ".join(repr(name) for name in columns.arrays) or "nothing"
        raise KeyMissingError(
            f"{type(transform).__name__} needs {key!r}; the environment has {present}. Name the entry with "
            f"{argument}=[...]"
        )
    return found


def chain(programs: list[RowProgram]) -> RowProgram:
    """One program from several: steps and resets from the simulator outwards, inverses from the policy inwards."""
    steps = [program.step for program in programs]
    resets = [program.reset for program in programs]
    inverses = [program.before for program in reversed(programs) if program.before is not None]
    aheads = [program.ahead for program in programs if program.ahead is not None]

    def step(t: int) -> None:
        for part in steps:
            part(t)

    def reset(t: int, mask: np.ndarray | None) -> None:
        for part in resets:
            part(t, mask)

    def before(t: int) -> None:
        for part in inverses:
            part(t)

    def ahead(t: int) -> None:
        for part in aheads:
            part(t)

    return RowProgram(step, reset, before if inverses else None, ahead if aheads else None)
