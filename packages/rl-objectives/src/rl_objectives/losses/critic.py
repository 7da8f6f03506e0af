"""The critic's part of an actor-critic loss: distance to the value target, clipping, shared weights held out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_objectives.functional.distance import distance_loss
from rl_objectives.shapes import check_same_shape

__all__ = ["check_same_shape", "clipped_value_distance", "shared_weights"]


def clipped_value_distance(
    value: Tensor, old_value: Tensor, target: Tensor, limit: Tensor, loss_function: str
) -> tuple[Tensor, Tensor]:
    """The larger of the distances of the value and of the value kept within ``limit`` of the old one.

    Args:
        value: the critic's value now, any shape.
        old_value: its value when the data was collected, same shape.
        target: same shape.
        limit: the largest change, a scalar.
        loss_function: see :func:`distance_loss`.

    Returns:
        ``(distance, clipped)``: the elementwise distance, and bool where the clip was at work.

    Engstrom et al., 2020, Implementation Matters in Deep Policy Gradients, section 2, arXiv 2005.12729.
    """
    change = value - old_value
    kept = old_value + change.clamp(-limit, limit)
    distance = torch.maximum(distance_loss(value, target, loss_function), distance_loss(kept, target, loss_function))
    return distance, change.detach().abs() > limit


def shared_weights(critic: nn.Module, actor: nn.Module) -> dict[str, Tensor]:
    """The critic's parameters that are the actor's as well, by the critic's names, cut from the graph."""
    actors = {id(parameter) for parameter in actor.parameters()}
    named = critic.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() for name, parameter in named if id(parameter) in actors}
