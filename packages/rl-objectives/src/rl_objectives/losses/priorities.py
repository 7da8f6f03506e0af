"""Prioritised replay on the side of the loss: importance weights in, priorities out."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key
from rl_core.losses.keys import quoted

__all__ = ["check_priority_type", "row_weights", "write_priority"]

_TYPES = ("abs", "squared")


def check_priority_type(priority_type: str) -> str:
    """The name itself.

    Raises:
        SpecError: it is neither "abs" nor "squared".
    """
    if priority_type not in _TYPES:
        raise SpecError(f"priority_type is one of {', '.join(map(repr, _TYPES))}; got {priority_type!r}")
    return priority_type


def row_weights(weight: Tensor, like: Tensor, key: Key, owner: str) -> Tensor:
    """The importance weights of a prioritised batch, as a factor of per-row losses.

    They multiply the loss before its mean, which is not divided by their sum: the sampler has scaled them by their
    maximum already.

    Args:
        weight: [*B] or [*B, 1].
        like: the per-row losses, [*B, ...].
        key: where the weights lie in the batch, for the error.
        owner: the loss, for the error.

    Returns:
        The weights with as many dimensions as ``like``.

    Raises:
        LossError: they do not fit.

    Schaul et al., 2015, Prioritized Experience Replay, section 3.4 and algorithm 1, line 12, arXiv 1511.05952.
    """
    if weight.shape == like.shape:
        return weight
    rows = weight if weight.shape == like.shape[: weight.ndim] else weight.squeeze(-1)
    if rows.shape != like.shape[: rows.ndim]:
        raise LossError(
            f"{owner}: {quoted(key)} {list(weight.shape)} must be one weight per row, [*B] or [*B, 1]; the losses are "
            f"{list(like.shape)}"
        )
    return rows.reshape(rows.shape + (1,) * (like.ndim - rows.ndim))


def write_priority(batch: TensorDictBase, key: Key, error: Tensor, mask: Tensor | None, priority_type: str) -> None:
    """Write each row's error into the batch, for a buffer's ``update_priority``.

    Args:
        batch: [*B].
        key: where.
        error: at least 0, [*B, ...].
        mask: bool [*B]; rows that do not count get 0.
        priority_type: "abs": the error; "squared": its square.
    """
    if priority_type == "squared":
        error = error.square()
    if mask is not None:
        error = error.masked_fill(~mask.reshape(mask.shape + (1,) * (error.ndim - mask.ndim)), 0)
    batch.set(key, error)
