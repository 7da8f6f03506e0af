"""Seeds: one for the whole process, and independent ones for each worker and environment of a run.

A run has one root seed. ``seed_everything(seed)`` seeds the process; ``spawn_seeds(seed, n)`` gives each environment
its own stream. Counting up (``seed + i``) must not be used for the latter: the runs with seeds 0, 1 and 2 would then
share most of their environments' streams.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

__all__ = ["seed_everything", "seed_generator", "spawn_seeds"]

_MAX_SEED = 2**32 - 1  # numpy.random.seed takes 32 bits; torch and gymnasium take more


def _checked(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"a seed is an integer >= 0, got {seed!r}")
    return int(seed)


def seed_everything(seed: int) -> None:
    """Seed Python's ``random``, NumPy's global generator and torch (every device).

    Environments are not reached: give them seeds of :func:`spawn_seeds`.

    Args:
        seed: an integer >= 0; NumPy's global generator gets its lowest 32 bits.

    Example:
        >>> import torch
        >>> seed_everything(3); a = torch.rand(2)
        >>> seed_everything(3); bool((a == torch.rand(2)).all())
        True
    """
    import torch

    seed = _checked(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed % 2**63)


def seed_generator(seed: int) -> int:
    """The seed that follows ``seed`` in a fixed pseudo-random chain, as ``env.set_seed`` returns it.

    Args:
        seed: an integer >= 0.

    Returns:
        An integer in ``[0, 2**32 - 2]``.

    Example:
        >>> seed_generator(0)
        795726461
    """
    drawn = np.random.default_rng(_checked(seed)).bytes(8)
    return int.from_bytes(drawn, byteorder="big") % _MAX_SEED


def spawn_seeds(seed: int, n: int, *, key: Sequence[int] = ()) -> list[int]:
    """``n`` seeds of independent streams that hang from one root seed, for the workers or environments of a run.

    The seeds are children of ``numpy.random.SeedSequence(seed, spawn_key=key)``: other roots or keys give unrelated
    seeds, and a longer list starts with the shorter one (unless the shorter held a collision, one in 4e9 / n^2).

    Args:
        seed: the run's root seed, an integer >= 0.
        n: how many seeds.
        key: the place below the root, for example ``(worker,)``: ``spawn_seeds(seed, envs, key=(worker,))``.

    Returns:
        ``n`` different integers in ``[0, 2**32 - 1]``.

    Example:
        >>> first, second = spawn_seeds(0, 2)
        >>> {first, second}.isdisjoint(spawn_seeds(1, 2))
        True
    """
    root = np.random.SeedSequence(_checked(seed), spawn_key=tuple(_checked(part) for part in key))
    seeds: list[int] = []
    taken: set[int] = set()
    while len(seeds) < n:
        drawn = int(root.spawn(1)[0].generate_state(1)[0])
        if drawn not in taken:
            taken.add(drawn)
            seeds.append(drawn)
    return seeds
