"""What an ensemble of critics says together: its smallest value, or the lower part of all its quantiles."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["smallest_of_subset", "smallest_value", "truncated_mixture"]


def smallest_value(values: Tensor) -> Tensor:
    r"""``min_i Q_i``, [*B, ...] of [N, *B, ...]; of equal values each gets its share of the gradient.

    >>> smallest_value(torch.tensor([[1.0, 5.0], [2.0, 3.0]]))
    tensor([1., 3.])
    """
    if values.shape[0] == 1:
        return values[0]
    if values.shape[0] == 2:
        first, second = values.unbind()
        return torch.minimum(first, second)
    return values.amin(0)


def smallest_of_subset(values: Tensor, size: int) -> Tensor:
    r"""``min_{i in M} Q_i`` over a random subset M, one for all rows.

    Args:
        values: [N, *B, ...].
        size: number of members of M, 1 to N.

    Returns:
        [*B, ...].

    Chen et al., 2021, Randomized Ensembled Double Q-Learning, algorithm 1, arXiv 2101.05982.
    """
    if size == values.shape[0]:
        return smallest_value(values)
    chosen = torch.randperm(values.shape[0], device=values.device)[:size]
    return smallest_value(values.index_select(0, chosen))


def truncated_mixture(quantiles: Tensor, drop: int) -> Tensor:
    r"""The atoms of all critics together, less the largest ones.

    Args:
        quantiles: [N, *B, M].
        drop: atoms to drop per critic, 0 to M - 1; N times as many of the mixture's largest are left out.

    Returns:
        The (M - drop) N smallest, in order: [*B, (M - drop) N].

    Raises:
        SpecError: nothing would be left.

    Kuznetsov et al., 2020, Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional
    Quantile Critics, eq. 8, arXiv 2005.04269.

    >>> truncated_mixture(torch.tensor([[[1.0, 9.0]], [[4.0, 2.0]]]), 1)
    tensor([[1., 2.]])
    """
    count, atoms = quantiles.shape[0], quantiles.shape[-1]
    if not 0 <= drop < atoms:
        raise SpecError(f"of {atoms} quantiles per critic, 0 to {atoms - 1} can be dropped; got {drop}")
    mixed = quantiles.movedim(0, -2).flatten(-2)
    return mixed.sort(-1)[0][..., : count * (atoms - drop)]
