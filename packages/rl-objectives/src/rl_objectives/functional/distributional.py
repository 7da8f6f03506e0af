"""Categorical value distributions (C51) on tensors: the projection of a shifted distribution back onto its atoms."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import LossError, SpecError

__all__ = ["categorical_cross_entropy", "categorical_projection", "check_support", "expected_value", "pick_action"]


def check_support(support: Tensor) -> Tensor:
    """The atoms themselves.

    Raises:
        SpecError: they are not one row of at least two increasing numbers at equal distances.
    """
    if support.ndim != 1 or support.numel() < 2 or not support.is_floating_point():
        raise SpecError(
            f"a support is one row of at least two floating-point atoms; got {support.dtype} {list(support.shape)}. "
            "Make it with torch.linspace(v_min, v_max, 51)."
        )
    gaps = support.diff()
    spread = support[-1] - support[0]
    if not bool((gaps > 0).all()) or bool((gaps - gaps.mean()).abs().max() > 1e-4 * spread):
        raise SpecError(
            "the atoms of a support increase by equal steps; got steps from "
            f"{gaps.min().item():g} to {gaps.max().item():g}. Make it with torch.linspace(v_min, v_max, 51)."
        )
    return support


def categorical_projection(probs: Tensor, atoms: Tensor, support: Tensor) -> Tensor:
    r"""The distribution on ``support`` that shares each atom's mass between its two neighbours there.

    .. math:: m_i = \sum_j \left[ 1 - \frac{|[z_j]_{V_{min}}^{V_{max}} - x_i|}{\Delta x} \right]_0^1 p_j

    The mass is conserved, also where an atom falls exactly on the support or outside of it.

    Args:
        probs: [*B, K]: the mass of each atom.
        atoms: [*B, K], or [K] for all rows: where the mass lies, e.g. ``r + gamma z``; clamped to the support.
        support: [N]: N equally spaced increasing numbers, see :func:`check_support`.

    Returns:
        [*B, N].

    Raises:
        LossError: there is not one atom for each mass.

    Bellemare et al., 2017, A Distributional Perspective on Reinforcement Learning, eq. 7 and algorithm 1,
    arXiv 1707.06887.

    >>> support = torch.tensor([0.0, 1.0, 2.0])
    >>> categorical_projection(torch.tensor([0.5, 0.0, 0.5]), torch.tensor([0.25, 1.0, 9.0]), support)
    tensor([0.3750, 0.1250, 0.5000])
    """
    if atoms.shape not in (probs.shape, probs.shape[-1:]):
        raise LossError(f"masses {list(probs.shape)} and their atoms {list(atoms.shape)} must be [*B, K], or atoms [K]")
    count = support.shape[-1]
    low, high = support[0], support[-1]
    position = ((atoms - low) * ((count - 1) / (high - low))).clamp(0, count - 1)
    # The last interval is closed on the right: the lower neighbour is never the last atom, so there is an upper one.
    below = position.floor().clamp(0, count - 2)
    share = position - below
    index = below.to(torch.int64).expand_as(probs)
    projected = probs.new_zeros((*probs.shape[:-1], count))
    projected.scatter_add_(-1, index, probs * (1 - share))
    return projected.scatter_add_(-1, index + 1, probs * share)


def categorical_cross_entropy(target_probs: Tensor, log_probs: Tensor) -> Tensor:
    r"""The distance between a target distribution and the predicted one.

    .. math:: -\sum_i m_i \log p_i

    Args:
        target_probs: [*B, K].
        log_probs: [*B, K].

    Returns:
        [*B, 1].

    Bellemare et al., 2017, algorithm 1, arXiv 1707.06887.
    """
    return -(target_probs * log_probs).sum(-1, keepdim=True)


def expected_value(log_probs: Tensor, support: Tensor) -> Tensor:
    """The mean of each action's value distribution.

    Args:
        log_probs: [*B, K, n].
        support: [K].

    Returns:
        [*B, n].

    >>> expected_value(torch.tensor([[0.5], [0.5]]).log(), torch.tensor([0.0, 2.0]))
    tensor([1.])
    """
    return (log_probs.exp() * support.unsqueeze(-1)).sum(-2)


def pick_action(values: Tensor, index: Tensor) -> Tensor:
    """The distributions of one action per row.

    Args:
        values: [*B, K, n].
        index: [*B, 1], int64.

    Returns:
        [*B, K].
    """
    index = index.unsqueeze(-1)
    return values.gather(-1, index.expand(*values.shape[:-1], 1)).squeeze(-1)
