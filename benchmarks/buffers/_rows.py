"""The rows that all contenders store: state rows of 166 bytes, or frames of 4 x 84 x 84."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = dict[str, NDArray[Any]]


def rows(kind: str, n: int, episode: int = 200) -> Rows:
    """``n`` rows with the names of a flat transition."""
    random = np.random.default_rng(0)
    ends = (np.arange(n) % episode == episode - 1)[:, None]
    common = {
        "reward": random.standard_normal((n, 1), dtype=np.float32),
        "done": ends,
        "terminated": ends.copy(),
    }
    if kind == "state":
        return {
            "obs": random.standard_normal((n, 17), dtype=np.float32),
            "act": random.standard_normal((n, 6), dtype=np.float32),
            "next_obs": random.standard_normal((n, 17), dtype=np.float32),
            **common,
        }
    frames = random.integers(0, 255, (64, 4, 84, 84), dtype=np.uint8)
    return {
        "obs": frames[np.arange(n) % 64],
        "act": np.zeros((n, 1), dtype=np.int64),
        "next_obs": frames[np.arange(1, n + 1) % 64],
        **common,
    }


def size(kind: str) -> int:
    """Bytes of a row."""
    return sum(leaf.nbytes for leaf in rows(kind, 1).values())
