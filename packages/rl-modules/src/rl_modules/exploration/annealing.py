"""Numbers that fall linearly with the frames seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rl_core.specs import Composite, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from rl_core.keys import Key

__all__ = ["anneal_", "one_action_spec"]


def anneal_(value: Tensor, start: Tensor, end: Tensor, share: float) -> None:
    """Move a number by a share of the way from start to end, in place, and not beyond the end.

    Args:
        value: the number, without dims.
        start: where it began.
        end: where it stays.
        share: frames since the last call over frames of the whole annealing.

    >>> eps = torch.tensor(1.0)
    >>> anneal_(eps, torch.tensor(1.0), torch.tensor(0.1), 0.5)
    >>> round(eps.item(), 4)
    0.55
    """
    moved = value + (end - start) * share
    value.copy_(torch.where(start >= end, torch.maximum(moved, end), torch.minimum(moved, end)))


def one_action_spec(spec: TensorSpec, action_key: Key) -> TensorSpec:
    """The spec of one environment's action, from that of an action or a Composite, with or without batch dims."""
    leaf = spec[action_key] if isinstance(spec, Composite) else spec
    return leaf[(0,) * leaf.batch_ndim] if leaf.batch_ndim else leaf
