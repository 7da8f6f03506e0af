"""rl-objectives: the GAE module on a TensorDict, keys read and written, through whichever backend is installed."""

from __future__ import annotations

from collections.abc import Callable

from _data import GAMMA, LMBDA, batch_of

from rl_objectives import GAE


def build(batch: int, time: int) -> Callable[[], object]:
    """One repetition is one estimate of the whole batch."""
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=None)
    data = batch_of(batch, time)
    return lambda: estimator(data)
