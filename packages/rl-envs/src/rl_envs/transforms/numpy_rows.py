"""Row programs of transforms that map one entry to another by a numpy function that writes in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rl_core import Columns, RowProgram, Transform
from rl_core.errors import KeyMissingError
from rl_core.keys import Key

__all__ = ["entry_program", "entry_rows"]

InPlace = Callable[[np.ndarray, np.ndarray], object]
Bound = tuple[list[np.ndarray], list[np.ndarray], InPlace]


def entry_rows(transform: Transform, columns: Columns, key: Key) -> np.ndarray:
    """The rows of an entry that a transform names.

    Raises:
        KeyMissingError: there are none.
    """
    if key not in columns:
        present = ", ".join(map(repr, columns.arrays)) or "nothing"
        raise KeyMissingError(
            f"{type(transform).__name__} needs {key!r}; the environment has {present}. Name the entry with "
            "in_keys=[...]"
        )
    return columns[key]


def entry_program(
    transform: Transform,
    before: Columns,
    after: Columns,
    outward: Sequence[tuple[Key, Key, InPlace]],
    inward: Sequence[tuple[Key, Key, InPlace]] = (),
) -> RowProgram:
    """Bind ``function(source row, target row)`` to columns.

    Args:
        transform: whose program it is, for the error where an entry is missing.
        before: the columns nearer to the simulator.
        after: the columns nearer to the policy.
        outward: ``(in key, out key, function)`` for observations and rewards.
        inward: ``(in key, out key, function)`` for actions: from the out key's row to the in key's.
    """
    carried: list[Bound] = []
    results: list[Bound] = []
    for key, out_key, function in outward:
        source = entry_rows(transform, before, key)
        sources, targets = list(source), list(after[out_key])
        if source.ndim == 1:  # rows of single numbers: keep them arrays
            sources, targets = _cells(source), _cells(after[out_key])
        (carried if key in before.carried else results).append((sources, targets, function))
    actions = []
    for key, out_key, function in inward:
        if after[out_key].ndim == 1:
            actions.append((_cells(after[out_key]), _cells(before[key]), function))
        else:
            actions.append((list(after[out_key]), list(before[key]), function))

    def step(t: int) -> None:
        for sources, targets, function in carried:
            function(sources[t + 1], targets[t + 1])
        for sources, targets, function in results:
            function(sources[t], targets[t])

    def reset(t: int, mask: np.ndarray | None) -> None:
        for sources, targets, function in carried:
            if mask is None:
                function(sources[t], targets[t])
            else:
                fresh = np.empty_like(targets[t])
                function(sources[t], fresh)
                targets[t][mask] = fresh[mask]

    def inverse(t: int) -> None:
        for sources, targets, function in actions:
            function(sources[t], targets[t])

    return RowProgram(step, reset, inverse if actions else None)


def _cells(array: np.ndarray) -> list[np.ndarray]:
    """Rows of shape () as arrays that share memory."""
    return [array[t : t + 1].reshape(()) for t in range(len(array))]
