"""The memory of a priority tree: where header, priorities, generations and nodes lie among its 64-bit words.

The same numbers are in native/trees.h, which explains them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "CAPACITY_WORD", "FAN", "HEADER_WORDS", "LARGEST", "LARGEST_WORD", "LEAF_WORDS", "LIVE_WORD", "LOCK_WORD",
    "MAX_CAPACITY", "NODE_WORDS", "SMALLEST", "Views", "new_memory", "tree_blocks", "tree_words", "views",
]  # fmt: skip

FAN = 8
HEADER_WORDS, LEAF_WORDS, NODE_WORDS = 16, 16, 24
LOCK_WORD, _FORMAT_WORD, CAPACITY_WORD, LIVE_WORD, LARGEST_WORD = 0, 8, 9, 10, 11
MAX_CAPACITY = 1 << 48

SMALLEST, LARGEST = 2.2250738585072014e-308, 1e280
"""The range of stored priorities above zero."""

_FORMAT = 0x524C545245453031  # "RLTREE01"


def tree_blocks(capacity: int) -> list[int]:
    """The number of blocks in each level, leaves first.

    >>> tree_blocks(100)
    [13, 2, 1]
    """
    blocks = [-(-capacity // FAN)]
    while len(blocks) == 1 or blocks[-1] > 1:
        blocks.append(-(-blocks[-1] // FAN))
    return blocks


def tree_words(capacity: int) -> int:
    """How many 64-bit words a tree of `capacity` slots takes: about 2.4 a slot.

    >>> tree_words(100), tree_words(10**6) * 8 / 10**6 < 19.5
    (296, True)
    """
    leaves, *nodes = tree_blocks(capacity)
    return HEADER_WORDS + leaves * LEAF_WORDS + sum(nodes) * NODE_WORDS


def new_memory(capacity: int) -> Tensor:
    """The memory of an empty tree, int64 ``[words]``; pages are taken when rows are written."""
    memory = torch.zeros(tree_words(capacity), dtype=torch.int64)
    memory[_FORMAT_WORD], memory[CAPACITY_WORD] = _FORMAT, capacity
    return memory


class Views(NamedTuple):
    """The memory as arrays that share it.

    Attributes:
        header: int64 ``[16]``.
        priority: stored priorities, float64 ``[blocks, 8]``.
        generation: int64 ``[blocks, 8]``.
        nodes: per level above the leaves, float64 ``[blocks, 3, 8]``: sums, minima, maxima of the blocks below.
    """

    header: np.ndarray
    priority: np.ndarray
    generation: np.ndarray
    nodes: list[np.ndarray]


def views(memory: Tensor) -> Views:
    """Arrays on the memory of a tree."""
    words = memory.numpy()
    leaves, *nodes = tree_blocks(int(words[CAPACITY_WORD]))
    start = HEADER_WORDS + leaves * LEAF_WORDS
    blocks = words[HEADER_WORDS:start].reshape(leaves, 2, FAN)
    levels = []
    for n in nodes:
        levels.append(words[start : start + n * NODE_WORDS].view(np.float64).reshape(n, 3, FAN))
        start += n * NODE_WORDS
    return Views(words[:HEADER_WORDS], blocks[:, 0].view(np.float64), blocks[:, 1], levels)
