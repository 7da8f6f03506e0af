"""Distances between a prediction and its target, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["check_distance", "distance_loss"]

_DISTANCES: dict[str, Callable[..., Tensor]] = {"l1": F.l1_loss, "l2": F.mse_loss, "smooth_l1": F.smooth_l1_loss}


def check_distance(loss_function: str) -> str:
    """The name itself.

    Raises:
        SpecError: there is no such distance.
    """
    if loss_function not in _DISTANCES:
        raise SpecError(f"a distance is one of {', '.join(map(repr, _DISTANCES))}; got {loss_function!r}")
    return loss_function


def distance_loss(prediction: Tensor, target: Tensor, loss_function: str = "l2", *, reduction: str = "none") -> Tensor:
    """The elementwise distance, or its mean or sum.

    Args:
        prediction: any shape.
        target: same shape; nothing is broadcast.
        loss_function: "l2" (squared), "l1", or "smooth_l1" (Huber with threshold 1; Girshick, 2015, eq. 3).
        reduction: "none", "mean" or "sum"; the latter are one operation, forwards and backwards.

    Returns:
        Same shape; a scalar if reduced.

    Raises:
        SpecError: the shapes differ, or there is no such distance.

    >>> import torch
    >>> distance_loss(torch.tensor([0.0, 3.0]), torch.tensor([0.5, 0.0]), "smooth_l1")
    tensor([0.1250, 2.5000])
    """
    if prediction.shape != target.shape:
        raise SpecError(f"prediction {list(prediction.shape)} and target {list(target.shape)} must have one shape")
    return _DISTANCES[check_distance(loss_function)](prediction, target, reduction=reduction)
