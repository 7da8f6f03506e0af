"""Windows over time in stored steps: for each step the N frames up to it, or from it on, within its episode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Episodes", "future_windows", "past_windows"]


@dataclass(frozen=True)
class Episodes:
    """Where the episodes in stored steps ``[M, T]`` begin and end.

    Attributes:
        first: for each step the time of its episode's first one, ``[M, T]``.
        last: likewise of its last one; the data's end counts as one.
    """

    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, done: Tensor) -> Episodes:
        """From the flags of what followed each step, bool ``[M, T]``."""
        size = done.shape[1]
        time = torch.arange(size, device=done.device).expand_as(done)
        begins = torch.ones_like(done)
        begins[:, 1:] = done[:, :-1]
        first = torch.where(begins, time, 0).cummax(1).values
        ends = done.clone()
        ends[:, -1:] = True
        last = torch.where(ends, time, size).flip(1).cummin(1).values.flip(1)
        return cls(first, last)


def past_windows(
    frames: Tensor,
    following: Tensor | None,
    episodes: Episodes,
    n: int,
    history: Tensor | None = None,
    padding: Tensor | None = None,
) -> tuple[list[Tensor], Tensor, list[Tensor] | None, Tensor]:
    """The n frames that end at each step, and those that end at what followed it.

    Frames from before an episode are its first one.

    Args:
        frames: those at the root, ``[M, T, ...]``.
        following: those under "next".
        episodes: of the steps.
        n: how many.
        history: the n frames that end at the first step ``[M, n, ...]``, for episodes that began before the data.
        padding: which of these stand for missing ones, bool ``[M, n]``.

    Returns:
        n tensors like ``frames`` (the oldest first), which of them stand for missing ones ``[M, T, n]``; the same for
        what followed.
    """
    time = torch.arange(frames.shape[1], device=frames.device).expand_as(episodes.first)
    known = frames if history is None else torch.cat([history[:, :-1], frames], 1)
    shift = known.shape[1] - frames.shape[1]
    marks = None
    if history is not None and padding is not None:
        marks = torch.cat([padding[:, :-1], torch.zeros_like(episodes.first, dtype=torch.bool)], 1)

    def window(end: int, count: int) -> tuple[list[Tensor], Tensor]:
        values, padded = [], []
        for ago in range(count - 1, -1, -1):
            place = time + (end - ago)
            before = place < episodes.first
            if shift:  # an episode under way at the first step has a past
                before = before & ((episodes.first > 0) | (place < -shift))
            source = torch.where(before, episodes.first, place) + shift
            values.append(take(known, source))
            padded.append(before if marks is None else before | take(marks, source))
        return values, torch.stack(padded, -1)

    root, missing = window(0, n)
    if following is None:
        return root, missing, None, missing
    if n == 1:
        return root, missing, [following], missing
    nxt, missing_next = window(0, n - 1)
    none = torch.zeros_like(missing_next[..., :1])
    return root, missing, [*nxt, following], torch.cat([missing_next, none], -1)


def future_windows(
    frames: Tensor, following: Tensor | None, episodes: Episodes, n: int
) -> tuple[list[Tensor], Tensor, list[Tensor] | None, Tensor]:
    """The n frames that begin at each step, at the root and under "next"; after an episode's last one, that one."""
    time = torch.arange(frames.shape[1], device=frames.device).expand_as(episodes.last)
    places = [time + ahead for ahead in range(n)]
    missing = torch.stack([place > episodes.last for place in places], -1)
    places = [torch.minimum(place, episodes.last) for place in places]
    root = [take(frames, place) for place in places]
    nxt = None if following is None else [take(following, place) for place in places]
    return root, missing, nxt, missing


def take(frames: Tensor, place: Tensor) -> Tensor:
    """``frames[m, place[m, t]]``, from ``[M, S, ...]`` with places ``[M, T]``."""
    rows = torch.arange(len(frames), device=frames.device).unsqueeze(1) * frames.shape[1]
    flat = frames.reshape(-1, *frames.shape[2:]).index_select(0, (place + rows).reshape(-1))
    return flat.reshape(*place.shape, *frames.shape[2:])
