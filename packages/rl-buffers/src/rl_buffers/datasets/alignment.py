"""``align``: from a file's rows and end flags to transitions whose next observation is never another episode's.

Every reader calls it, so that an episode that ends by a time limit, one that the file cuts off, and a last observation
that is not there mean the same whatever the format.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.report import Tally

__all__ = ["MISSING_LAST", "Aligned", "Steps", "align", "check_missing_last", "find_ends"]

MISSING_LAST = ("drop", "repeat")
_NO_LAST = "the observation after them, the last of {}, is not in the file"


class Steps(NamedTuple):
    """What a file says about its R rows, which are in the order of time, one row per action.

    Attributes:
        terminated: the episode ends by a termination with the row, bool ``[R]``.
        truncated: it ends by a time limit, bool ``[R]``.
        begins: an episode begins with the row although no flag ends the one before, bool ``[R]``; ``None``: nowhere.
        known_next: the file holds the observation after the row apart from the next row, bool ``[R]``; ``None``: for no
            row.
    """

    terminated: Tensor
    truncated: Tensor
    begins: Tensor | None = None
    known_next: Tensor | None = None


class Aligned(NamedTuple):
    """The T transitions that R rows give.

    Attributes:
        rows: which rows of the file they are, ascending int64 ``[T]``.
        terminated: bool ``[T]``.
        truncated: bool ``[T]``, also true in the last transition of an episode that no flag ends.
        trajectory: the number of the episode, from 0 without gaps, int64 ``[T]``.
        repeated: the next observation is not in the file, and repeats the row's own, bool ``[T]``.
        tally: the counts.
    """

    rows: Tensor
    terminated: Tensor
    truncated: Tensor
    trajectory: Tensor
    repeated: Tensor
    tally: Tally


def check_missing_last(missing_last: str) -> None:
    """Raise DatasetError unless it is one of the two choices."""
    if missing_last not in MISSING_LAST:
        raise DatasetError(f"missing_last is 'drop' or 'repeat', got {missing_last!r}")


def find_ends(steps: Steps) -> Tensor:
    """Whether an episode's rows end with the row: by a flag, before a row that begins one, and at the end; ``[R]``."""
    ends = steps.terminated | steps.truncated
    if steps.begins is not None:
        ends[:-1] |= steps.begins[1:]
    ends[-1:] = True
    return ends


def align(steps: Steps, missing_last: str = "drop") -> Aligned:
    """The transitions of a file.

    The observation after a row is the next row's, unless the episode ends with the row. Where it ends and the file does
    not hold the last observation otherwise, a terminated row repeats its own (no value is taken of what follows a
    termination), and of other rows `missing_last` decides: "drop" leaves the row out and marks the row before it
    truncated, "repeat" keeps it, with its own observation as the next one.

    An episode that ends without a flag is marked truncated in its last transition, and counted as cut.

    Args:
        steps: the rows.
        missing_last: "drop" or "repeat".

    Example:
        >>> terminated, truncated = torch.zeros(2, 7, dtype=torch.bool)
        >>> truncated[3] = terminated[4] = True  # 4 steps to a time limit, 1 to a termination, 2 unfinished
        >>> aligned = align(Steps(terminated, truncated, known_next=torch.ones(7, dtype=torch.bool)))
        >>> aligned.truncated.tolist()
        [False, False, False, True, False, False, True]
        >>> align(Steps(terminated, truncated)).rows.tolist()
        [0, 1, 2, 4, 5]
    """
    check_missing_last(missing_last)
    ends = find_ends(steps)
    flagged = steps.terminated | steps.truncated
    cut = ends & ~flagged
    lost = ends if steps.known_next is None else ends & ~steps.known_next
    repeated = lost.clone() if missing_last == "repeat" else lost & steps.terminated
    dropped = lost & ~repeated
    truncated = steps.truncated | cut
    truncated[:-1] |= dropped[1:] & ~ends[:-1]
    rows = (~dropped).nonzero().squeeze(-1)
    episode = ends.cumsum(0) - ends.long()
    tally = _count(steps, ends, cut, episode[rows], repeated, dropped)
    trajectory = torch.unique_consecutive(episode[rows], return_inverse=True)[1]
    return Aligned(rows, steps.terminated[rows], truncated[rows], trajectory, repeated[rows], tally)


def _count(steps: Steps, ends: Tensor, cut: Tensor, kept: Tensor, repeated: Tensor, dropped: Tensor) -> Tally:
    there = torch.bincount(kept, minlength=int(ends.sum())) > 0  # episodes that have a transition left
    terminated, cut_off = steps.terminated[ends] & there, cut[ends] & there
    tally = Tally(
        transitions=kept.numel(),
        episodes=int(there.sum()),
        terminated=int(terminated.sum()),
        cut=int(cut_off.sum()),
        repeated=int(repeated.sum()),
    )
    tally.truncated = tally.episodes - tally.terminated - tally.cut
    tally.drop(_NO_LAST.format("an episode that ends by a time limit"), int((dropped & ~cut).sum()))
    tally.drop(_NO_LAST.format("an unfinished episode"), int((dropped & cut).sum()))
    return tally
