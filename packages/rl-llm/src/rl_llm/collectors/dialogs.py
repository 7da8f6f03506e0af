"""``Dialogs``: the turns of dialogs that are under way, given back as wholes when they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tensordict import TensorDictBase

__all__ = ["Dialog", "Dialogs"]


class Dialog(NamedTuple):
    """A dialog from its first turn on.

    Attributes:
        number: its trajectory id.
        version: of the policy at the first turn.
        turns: each a TensorDict without batch dimensions.
    """

    number: int
    version: int
    turns: list[TensorDictBase]


class Dialogs:
    """Gathers the turns of a batch of chats by row.

    Args:
        rows: the chats that step together.
    """

    def __init__(self, rows: int) -> None:
        self._open: list[Dialog | None] = [None] * rows

    def add(
        self, turns: Sequence[TensorDictBase], numbers: Sequence[int], ended: Sequence[bool], version: int
    ) -> list[Dialog]:
        """One more turn of every chat.

        Args:
            turns: one per row.
            numbers: their trajectory ids.
            ended: whether this turn is a dialog's last one.
            version: of the policy that wrote them.

        Returns:
            The dialogs that ended.
        """
        whole = []
        for row, (turn, number, is_last) in enumerate(zip(turns, numbers, ended, strict=True)):
            dialog = self._open[row] or Dialog(number, version, [])
            dialog.turns.append(turn)
            self._open[row] = None if is_last else dialog
            if is_last:
                whole.append(dialog)
        return whole

    def abandon(self) -> int:
        """Forget the dialogs under way; returns their number."""
        count = sum(dialog is not None for dialog in self._open)
        self._open = [None] * len(self._open)
        return count

    @property
    def longest(self) -> int:
        """The turns of the longest dialog under way."""
        return max((len(dialog.turns) for dialog in self._open if dialog is not None), default=0)
