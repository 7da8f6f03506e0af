"""The check that keeps entries of a batch from being broadcast against each other's rows."""

from __future__ import annotations

from torch import Tensor

from rl_core.errors import LossError
from rl_core.keys import Key
from rl_core.losses.keys import quoted

__all__ = ["check_same_shape"]


def check_same_shape(owner: str, first: tuple[Key, Tensor], second: tuple[Key, Tensor]) -> None:
    """Raise unless two entries have one shape.

    Args:
        owner: who needs them, for the error.
        first: an entry's key and value.
        second: another's.

    Raises:
        LossError: they differ; both keys and shapes are named.
    """
    if first[1].shape != second[1].shape:
        raise LossError(
            f"{owner}: {quoted(first[0])} {list(first[1].shape)} and {quoted(second[0])} {list(second[1].shape)} must "
            "have one shape; they would broadcast against each other's rows."
        )
