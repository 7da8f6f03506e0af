"""What losses on a dataset's actions share: one number per row, its weight, and the policies that they can train."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from rl_core.errors import SpecError
from rl_core.losses.keys import quoted
from rl_core.losses.module import LossModule
from rl_objectives.losses.priorities import row_weights

__all__ = ["check_stochastic", "has_distribution", "log_prob_of", "row_means", "weighted_rows"]


def has_distribution(actor: nn.Module) -> bool:
    """Whether a policy can give the distribution of its actions."""
    return callable(getattr(actor, "get_dist", None)) or callable(getattr(actor, "get_dist_tensors", None))


def check_stochastic(actor: nn.Module, owner: str) -> None:
    """Raise unless a policy has a distribution.

    Raises:
        SpecError: it has none.
    """
    if not has_distribution(actor):
        raise SpecError(
            f"{owner} needs an actor_network with get_dist(tensordict), such as ProbabilisticActor; got "
            f"{type(actor).__name__}"
        )


def log_prob_of(loss: LossModule, distribution: Any, action: Tensor, key: str = "action") -> Tensor:
    """Log pi of the dataset's actions.

    Args:
        loss: who asks.
        distribution: of the policy, for the batch's observations.
        action: [*B, ...], of the shape of the distribution's samples: nothing is broadcast.
        key: the action's name in the loss's key map.

    Returns:
        [*B].

    Raises:
        SpecError: the action has another shape, or an action of several numbers has one log-probability for each.
    """
    owner, name = type(loss).__name__, quoted(loss.path(key))
    if isinstance(distribution, Distribution):
        expected = (*distribution.batch_shape, *distribution.event_shape)
        if action.shape != expected:
            raise SpecError(
                f"{owner}: {name} is {list(action.shape)}, but the policy's actions are {list(expected)}; they must "
                "have one shape"
            )
    log_prob: Tensor = distribution.log_prob(action)
    if action.is_floating_point() and log_prob.ndim and log_prob.shape == action.shape:
        raise SpecError(
            f"{owner}: the policy gives each number of {name} {list(action.shape)} a log-probability of its own. A "
            "distribution over a vector of actions sums over it (Independent)."
        )
    return log_prob


def row_means(values: Tensor, dims: int) -> Tensor:
    """The mean over all but the first ``dims`` dimensions.

    >>> import torch
    >>> row_means(torch.tensor([[1.0, 3.0]]), 1), row_means(torch.ones(2), 1)
    (tensor([2.]), tensor([1., 1.]))
    """
    return values.flatten(dims).mean(-1) if values.ndim > dims else values


def weighted_rows(loss: LossModule, batch: TensorDictBase, rows: Tensor) -> Tensor:
    """Per-row losses times the batch's importance weights, if it has any.

    Args:
        loss: its key map has a "priority_weight".
        batch: ``[*B]``.
        rows: ``[*B, ...]``.

    Raises:
        SpecError: the weights do not fit.
    """
    key = loss.path("priority_weight")
    weight = batch.get(key, None)
    return rows if weight is None else rows * row_weights(weight, rows, key, type(loss).__name__)
