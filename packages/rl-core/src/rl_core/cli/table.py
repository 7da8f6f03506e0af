"""A plain text table for a terminal; the first screen of ``rl plugins`` needs no library for it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["text_table"]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell.

    >>> print(text_table(["group", "name"], [["losses", "ppo"], ["envs", "gym"]]))
    group   name
    losses  ppo
    envs    gym
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
