"""The random generators of this process, left as they were by a block that seeds and uses them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["kept_random_state", "moves_torch"]


@contextmanager
def kept_random_state() -> Iterator[None]:
    """A block after which Python's, numpy's and torch's generators are as before it.

    Other threads draw from the same generators meanwhile, so it is for code that nothing runs beside.
    """
    python, numpy = random.getstate(), np.random.get_state()
    on_cuda = torch.cuda.is_initialized()
    devices = list(range(torch.cuda.device_count())) if on_cuda else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if not on_cuda and torch.cuda.is_available():
            torch.cuda.manual_seed_all(
                torch.initial_seed()
            )  # a seed that waits for CUDA's start is the one from before


@contextmanager
def moves_torch(found: list[bool]) -> Iterator[None]:
    """A block that says, in ``found``, whether it has moved torch's generator."""
    before = torch.get_rng_state()
    yield
    found.append(not torch.equal(before, torch.get_rng_state()))
