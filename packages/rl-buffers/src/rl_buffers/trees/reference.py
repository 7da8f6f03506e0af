"""The NumPy engine of priority trees: the twin of native/trees.cpp, equal to the last bit."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from rl_buffers.gather_reference import slot_error
from rl_buffers.trees.engine import Draw, TreeStats, nothing_to_draw, priority_error, write_slot_error
from rl_buffers.trees.layout import CAPACITY_WORD, FAN, LARGEST, LARGEST_WORD, LIVE_WORD, SMALLEST, Views, views

__all__ = ["ReferenceEngine"]


class ReferenceEngine:
    """Does what the kernels do, one level of the tree at a time.

    Args:
        lock: held during each step, since this code cannot take the lock in the tree's memory.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self.lock = lock

    def write(self, memory: Tensor, index: Tensor, alpha: float, eps: float, within: bool) -> None:
        tree, slots = views(memory), index.numpy()
        with self.lock:
            if slots.size == 0:
                return
            _check_written(slots, tree)
            tree.header[LIVE_WORD] = max(int(tree.header[LIVE_WORD]), int(slots.max()) + 1)
            block, place = slots >> 3, slots & 7
            value = _stats(tree).largest if within else _largest_ever(tree)
            if within and value > 0 and bool((tree.priority[block, place] == value).any()):
                tree.priority[block, place] = 0.0  # the row with the largest priority is gone
                _refresh(tree, block)
                value = _stats(tree).largest
            tree.priority[block, place] = value if value > 0 else _stored(1.0, alpha, eps)
            np.add.at(tree.generation, (block, place), 1)
            _refresh(tree, block)

    def update(
        self, memory: Tensor, index: Tensor, raw: Tensor, generation: Tensor | None, alpha: float, eps: float
    ) -> int:
        tree, slots, values = views(memory), index.numpy(), raw.numpy()
        with self.lock:
            live = int(tree.header[LIVE_WORD])
            _check_update(slots, values, live if generation is None else int(tree.header[CAPACITY_WORD]))
            keep = slots >= 0
            if generation is not None:
                keep &= slots < live
                inside = np.where(keep, slots, 0)
                keep &= tree.generation[inside >> 3, inside & 7] == generation.numpy()
            kept = slots[keep]
            stored = [_stored(value, alpha, eps) for value in values[keep].tolist()]
            for slot, value in zip(kept.tolist(), stored, strict=True):  # in order: the last of equal slots wins
                tree.priority[slot >> 3, slot & 7] = value
            _refresh(tree, kept >> 3)
            tree.header[LARGEST_WORD : LARGEST_WORD + 1].view(np.float64)[0] = max([_largest_ever(tree), *stored])
            return len(stored)

    def sample(self, memory: Tensor, n: int, seed: int, stratified: bool, beta: float, dtype: torch.dtype) -> Draw:
        tree = views(memory)
        with self.lock:
            stats = _stats(tree)
            if not stats.total > 0:
                raise nothing_to_draw(stats.live)
            slots = _descend(tree, _masses(n, seed, stratified, stats.total))
            priority = tree.priority[slots >> 3, slots & 7]
            generation = tree.generation[slots >> 3, slots & 7]
        weight = torch.tensor([_power(p / stats.smallest, -beta) for p in priority.tolist()], dtype=torch.float64)
        return Draw(torch.from_numpy(slots), weight.to(dtype), torch.from_numpy(generation))

    def stats(self, memory: Tensor) -> TreeStats:
        with self.lock:
            return _stats(views(memory))

    def read(self, memory: Tensor, n: int) -> tuple[Tensor, Tensor]:
        tree = views(memory)
        with self.lock:
            n = min(n, int(tree.header[LIVE_WORD]))
            blocks = -(-n // FAN)
            priority = tree.priority[:blocks].reshape(-1)[:n].copy()
            generation = tree.generation[:blocks].reshape(-1)[:n].copy()
        return torch.from_numpy(priority), torch.from_numpy(generation)

    def clear(self, memory: Tensor) -> None:
        tree = views(memory)
        with self.lock:
            tree.priority[:] = 0.0
            for level in tree.nodes:
                level[:] = 0.0
            tree.header[LIVE_WORD] = tree.header[LARGEST_WORD] = 0

    def load(self, memory: Tensor, priority: Tensor, generation: Tensor, largest_ever: float) -> None:
        values = priority.numpy()
        bad = ~((values >= 0) & (values <= LARGEST))
        if bad.any():
            position = int(bad.argmax())
            raise priority_error(float(values[position]), position, position)
        self.clear(memory)
        tree = views(memory)
        with self.lock:
            slots = np.arange(values.size)
            tree.priority[slots >> 3, slots & 7] = values
            tree.generation[slots >> 3, slots & 7] = generation.numpy()
            tree.header[LIVE_WORD] = values.size
            tree.header[LARGEST_WORD : LARGEST_WORD + 1].view(np.float64)[0] = largest_ever
            _refresh(tree, slots >> 3)


def _check_written(slots: np.ndarray, tree: Views) -> None:
    capacity = int(tree.header[CAPACITY_WORD])
    bad = (slots < 0) | (slots >= capacity)
    if bad.any():
        position = int(bad.argmax())
        raise write_slot_error(int(slots[position]), position, capacity)


def _check_update(slots: np.ndarray, values: np.ndarray, end: int) -> None:
    beyond = slots >= end
    wrong = (slots >= 0) & ~((values >= 0) & np.isfinite(values))
    if not (beyond | wrong).any():
        return
    position = int((beyond | wrong).argmax())
    if beyond[position]:
        raise slot_error(int(slots[position]), position, end)
    raise priority_error(float(values[position]), position, int(slots[position]))


def _largest_ever(tree: Views) -> float:
    return float(tree.header[LARGEST_WORD : LARGEST_WORD + 1].view(np.float64)[0])


def _power(base: float, exponent: float) -> float:
    """C's pow: math.pow calls it, NumPy's and torch's differ in the last bit."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _stored(raw: float, alpha: float, eps: float) -> float:
    base = raw + eps
    if base == 0 and alpha > 0:
        return 0.0
    return min(max(_power(base, alpha), SMALLEST), LARGEST)


def _sum8(x: np.ndarray) -> np.ndarray:
    return ((x[:, 0] + x[:, 1]) + (x[:, 2] + x[:, 3])) + ((x[:, 4] + x[:, 5]) + (x[:, 6] + x[:, 7]))


def _min8(x: np.ndarray) -> np.ndarray:
    least = np.where(x > 0, x, np.inf).min(axis=1)
    return np.where(np.isinf(least), 0.0, least)


def _refresh(tree: Views, blocks: np.ndarray) -> None:
    """Bring the nodes above changed leaf blocks up to date."""
    sums = least = most = tree.priority
    for level in tree.nodes:
        blocks = np.unique(blocks)
        above, place = blocks >> 3, blocks & 7
        level[above, 0, place] = _sum8(sums[blocks])
        level[above, 1, place] = _min8(least[blocks])
        level[above, 2, place] = most[blocks].max(axis=1)
        sums, least, most = level[:, 0], level[:, 1], level[:, 2]
        blocks = above


def _stats(tree: Views) -> TreeStats:
    root = tree.nodes[-1]
    total, smallest, largest = _sum8(root[:, 0])[0], _min8(root[:, 1])[0], root[0, 2].max()
    return TreeStats(float(total), float(smallest), float(largest), _largest_ever(tree), int(tree.header[LIVE_WORD]))


def _random_words(seed: int, n: int) -> np.ndarray:
    """SplitMix64 at counters 0 .. n-1, uint64 ``[n]``."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _masses(n: int, seed: int, stratified: bool, total: float) -> np.ndarray:
    words = _random_words(seed, 2 * n if stratified else n)
    uniform = (words[:n] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    if not stratified:
        return uniform * total
    order = list(range(n))
    high = (words >> np.uint64(32)).tolist()
    for i in range(n - 1, 0, -1):
        j = (high[n + i] * (i + 1)) >> 32
        order[i], order[j] = order[j], order[i]
    return (np.array(order, dtype=np.float64) + uniform) * (total / n)


def _descend(tree: Views, mass: np.ndarray) -> np.ndarray:
    """The slots below which the masses end; only places above zero are ever chosen."""
    node = np.zeros(mass.size, dtype=np.int64)
    levels = [tree.priority, *(level[:, 0] for level in tree.nodes)]
    for sums in reversed(levels):
        below = sums[node]
        chosen, last = np.full(mass.size, -1), np.zeros(mass.size, dtype=np.int64)
        for child in range(FAN):
            here = below[:, child]
            searching = chosen < 0
            ends = searching & (mass < here)
            chosen[ends] = child
            beyond = searching & ~ends
            last[beyond & (here > 0)] = child
            mass = np.where(beyond, mass - here, mass)
        past = chosen < 0  # sums are rounded: the mass may end just behind the last child
        node = node * FAN + np.where(past, last, chosen)
        mass = np.where(past, np.inf, mass)
    return node
