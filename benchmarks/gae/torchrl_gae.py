"""TorchRL: the GAE module on a TensorDict (its default, vectorised form)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from _data import GAMMA, LMBDA, batch_of
from torchrl.objectives.value import GAE


def build(batch: int, time: int) -> Callable[[], object]:
    """One repetition is one estimate of the whole batch."""
    warnings.simplefilter("ignore")
    estimator = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=None)
    data = batch_of(batch, time)
    return lambda: estimator(data)
