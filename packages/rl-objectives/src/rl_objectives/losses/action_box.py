"""The box in which the components of an action lie, from its spec."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.specs import Bounded, Composite, TensorSpec

__all__ = ["action_box"]


def action_box(action_spec: TensorSpec | None, action_key: Key, owner: str) -> tuple[Tensor, Tensor]:
    """The bounds of one environment's action.

    Args:
        action_spec: a Bounded spec, or a Composite with one; None: [-1, 1].
        action_key: where the action lies in a Composite.
        owner: the loss, for the error.

    Returns:
        ``(low, high)``: scalars where all components agree, else ``[A]``.

    Raises:
        SpecError: the spec is of another kind, or its box is unbounded or empty.

    >>> action_box(Bounded(-2.0, 2.0, (3,)), "action", "CQLLoss")
    (tensor(-2.), tensor(2.))
    """
    if action_spec is None:
        return torch.tensor(-1.0), torch.tensor(1.0)
    spec: TensorSpec | None = action_spec
    dims = action_spec.batch_ndim
    if isinstance(action_spec, Composite):
        dims, spec = len(action_spec.shape), action_spec.get(action_key, None)
    if not isinstance(spec, Bounded):
        raise SpecError(f"{owner} needs a Bounded action_spec, or a Composite with one; got {action_spec!r}")
    low, high = spec.low, spec.high
    if not bool((high > low).all()) or not bool((high - low).isfinite().all()):
        raise SpecError(f"{owner}: uniform actions need finite bounds, low below high; got {low} and {high}")
    if bool((low == low.flatten()[0]).all()) and bool((high == high.flatten()[0]).all()):
        return low.flatten()[0].clone(), high.flatten()[0].clone()
    return low[(0,) * dims].clone(), high[(0,) * dims].clone()
