"""Networks of one architecture evaluated at once: how a loss asks for the fast form of a critic's copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn
from typing_extensions import Self

__all__ = ["Stackable", "StackedNetwork"]


class StackedNetwork(nn.Module):
    """Several networks of one architecture as one module: its output has a leading dimension of members.

    ``forward(*inputs)`` takes what one member takes, ``[*B, F_i]``, and returns ``[num_copies, *B, out]``; the outputs
    of the first ``active`` members alone while that is a number.

    Args:
        num_copies: number of members.
    """

    def __init__(self, num_copies: int) -> None:
        super().__init__()
        self.num_copies = num_copies
        self.active: int | None = None


@runtime_checkable
class Stackable(Protocol):
    """A network that knows how to evaluate several of its kind at once."""

    def stacked(self, members: Sequence[Self]) -> StackedNetwork | None:
        """One module with copies of the members' weights.

        Args:
            members: networks that were copied from this one.

        Returns:
            The module; None where a part of the network can only run on its own.
        """
        ...
