"""Marks in a batch of slices: where each was cut off, and where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.keys import END_NAMES, Key, as_key, as_path, leaf_name, parent_path

__all__ = ["end_levels", "mark_ends", "mark_starts"]


def end_levels(batch: TensorDictBase, truncated_key: Key) -> list[Key]:
    """The "truncated" keys of all levels (the root's and those of groups) at which `batch` has end flags of a step.

    Args:
        batch: a batch of rows.
        truncated_key: always among them; other levels count where it is under "next" and named "truncated".
    """
    levels = [as_key(as_path(truncated_key))]
    if as_path(truncated_key)[0] != "next" or leaf_name(truncated_key) != "truncated":
        return levels
    for key in batch.keys(True, True):
        path = as_path(key)
        if path[0] == "next" and path[-1] in END_NAMES:
            level = as_key((*parent_path(path), "truncated"))
            if level not in levels:
                levels.append(level)
    return levels


def mark_ends(batch: TensorDictBase, cut: Tensor, levels: Sequence[Key]) -> None:
    """Set truncated, and done with it, in the last row of each slice; what the rows say of their ends stays true.

    ``truncated |= cut``, ``done |= cut``; where "terminated" is missing it is what "done" said without the cut, so that
    a cut is never taken for a terminal state.

    Args:
        batch: the rows, ``[B]``; changed.
        cut: bool ``[B]``.
        levels: the "truncated" entry of each level.
    """
    for truncated_key in levels:
        path = as_path(truncated_key)
        node = _container(batch, path[:-1])
        entries: dict[str, Any] = dict(node.items())
        done, terminated, truncated = (entries.get(name) for name in ("done", "terminated", path[-1]))
        known = next((flag for flag in (truncated, done, terminated) if flag is not None), None)
        cuts = _like(cut, known, batch)
        if terminated is None:
            terminated = torch.zeros_like(cuts) if done is None else done.clone()
            if done is not None and truncated is not None:
                terminated &= ~truncated
            node.set("terminated", terminated)
        # New tensors: in a batch that a transform has made, flags may share their memory.
        truncated = cuts.clone() if truncated is None else truncated | cuts
        node.set(path[-1], truncated)
        node.set("done", truncated | terminated if done is None else done | cuts)


def _container(batch: TensorDictBase, path: tuple[str, ...]) -> TensorDictBase:
    """The container at a path, made where there is none."""
    node = batch
    for name in path:
        inner = node.get(name, None)
        if inner is None:
            inner = TensorDict({}, batch.batch_size, device=batch.device)
            node.set(name, inner)
        node = inner
    return node


def mark_starts(batch: TensorDictBase, start: Tensor, init_key: Key) -> None:
    """Set the flag of a state that follows none in the first row of each slice, where rows have that entry.

    Args:
        batch: the rows, ``[B]``; changed.
        start: bool ``[B]``.
        init_key: the flag's entry.
    """
    flag = batch.get(init_key, None)
    if flag is not None:
        batch.set(init_key, flag | _like(start, flag, batch))


def _like(flags: Tensor, known: Tensor | None, batch: TensorDictBase) -> Tensor:
    """Flags per row in the shape and on the device of flags that are there; ``[B, 1]`` where there are none."""
    device = batch.device if known is None else known.device
    if device is not None and flags.device != device:
        flags = flags.to(device)
    if known is None:
        return flags.unsqueeze(-1)
    shaped = flags.reshape(-1, *(1 for _ in known.shape[1:]))
    return shaped if shaped.shape == known.shape else shaped.expand(known.shape)
