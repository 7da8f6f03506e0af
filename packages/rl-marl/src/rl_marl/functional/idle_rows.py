"""What stands in masked rows while a batch is evaluated as a whole: numbers that no network or distribution trips over.

Leaving a row out of a sum gives it a gradient of zero, and zero times NaN is NaN; so masked rows must be harmless.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["finite_inputs", "stand_in"]


def finite_inputs(value: Tensor, mask: Tensor) -> Tensor:
    """A network's input with masked rows that it can take.

    In masked rows floats that are not finite become 0, and a bool row without any True (an action mask that allows
    nothing) becomes all True. All else is left as it is: what an agent observes while it waits may inform others.

    Args:
        value: [*B, n, ...]; anything else is returned as it is.
        mask: bool [*B, n], True in rows that count.

    Returns:
        Of the value's shape.

    >>> allowed, acts = torch.tensor([[False, False], [False, True]]), torch.tensor([False, True])
    >>> finite_inputs(allowed, acts)
    tensor([[ True,  True],
            [False,  True]])
    """
    if value.shape[: mask.ndim] != mask.shape:
        return value
    idle = ~mask.reshape(mask.shape + (1,) * (value.ndim - mask.ndim))
    if value.is_floating_point():
        return value.masked_fill(idle & ~value.isfinite(), 0)
    if value.dtype is torch.bool and value.ndim > mask.ndim:
        return value | (idle & ~value.any(-1, keepdim=True))
    return value


def stand_in(action: Tensor, mask: Tensor) -> Tensor:
    """The actions with those of masked rows replaced by one that is surely in the action space: the first that counts.

    Args:
        action: [*B, n, ...].
        mask: bool [*B, n], True in rows that count.

    Returns:
        Of the action's shape.

    >>> stand_in(torch.tensor([-1, 2, 1]), torch.tensor([False, True, True]))
    tensor([2, 2, 1])
    """
    first = mask.flatten().to(torch.uint8).argmax()
    donor = action.flatten(0, mask.ndim - 1).index_select(0, first.unsqueeze(0)).squeeze(0)
    return torch.where(mask.reshape(mask.shape + (1,) * (action.ndim - mask.ndim)), action, donor)
