"""RateLimiter: how many rows are sampled for each row that is written, kept by letting one side wait for the other."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, MutableSequence
from contextlib import AbstractContextManager
from typing import Any

from rl_core.errors import ReplayBufferError

__all__ = ["RateLimiter"]

_POLL = 0.005  # between looks at what other processes did, which wake nobody here
_INSERTED, _SAMPLED = 0, 1


class RateLimiter:
    """Keeps ``samples_per_insert * (inserted - min_size) - sampled`` within plus and minus `tolerance`, in rows.

    Writes wait while it is above the tolerance (learners are behind), samples while they would take it below minus the
    tolerance (writers are behind) or while fewer than `min_size` rows are stored. One write may overshoot, since it is
    looked at before and not divided.

    Args:
        samples_per_insert: how often a row is sampled on average, > 0; ``None`` limits nothing beyond `min_size`.
        min_size: how many rows must be stored before anything is sampled.
        tolerance: in sampled rows, at least half a batch; default: enough for 100 writes of one row, or two batches of
            256, whichever is more.
        timeout: seconds to wait before an error is raised; 0 raises at once, ``None`` waits for ever.

    Paper:
        Cassirer et al. (2021), Reverb: A Framework For Experience Replay (rate limiters), arXiv:2102.04736.

    Example:
        >>> import torch
        >>> from rl_buffers import LazyTensorStorage, ReplayBuffer
        >>> limiter = RateLimiter(samples_per_insert=2.0, min_size=4, tolerance=4, timeout=0)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=8, rate_limiter=limiter)
        >>> _ = buffer.extend(torch.arange(6))
        >>> buffer.sample().shape  # 2 * (6 - 4) - 8 = -4
        torch.Size([8])
        >>> buffer.sample()
        Traceback (most recent call last):
            ...
        rl_core.errors.ReplayBufferError: 8 more rows may not be sampled yet: 6 were written and 8 sampled, ...
    """

    def __init__(
        self,
        samples_per_insert: float | None = None,
        *,
        min_size: int = 1,
        tolerance: float | None = None,
        timeout: float | None = None,
    ) -> None:
        if samples_per_insert is not None and not (math.isfinite(samples_per_insert) and samples_per_insert > 0):
            raise ReplayBufferError(f"samples_per_insert must be a number above 0, got {samples_per_insert}")
        if min_size < 1:
            raise ReplayBufferError(f"min_size must be at least 1, got {min_size}")
        if timeout is not None and timeout < 0:
            raise ReplayBufferError(f"timeout must be >= 0 or None, got {timeout}")
        self.samples_per_insert, self.min_size, self.timeout = samples_per_insert, min_size, timeout
        self.tolerance = max(100.0 * (samples_per_insert or 0.0), 512.0) if tolerance is None else float(tolerance)
        if not self.tolerance > 0:
            raise ReplayBufferError(f"tolerance must be above 0, got {tolerance}")
        self.insert_waited = self.sample_waited = 0.0
        """Seconds that writes and samples have waited in this process."""
        self._counts: MutableSequence[int] = [0, 0]
        self._shared = False
        self._changed = threading.Condition()

    @property
    def inserted(self) -> int:
        """How many rows were offered to the buffer."""
        return self._counts[_INSERTED]

    @property
    def sampled(self) -> int:
        """How many rows were sampled, or are about to be."""
        return self._counts[_SAMPLED]

    def can_insert(self) -> bool:
        """Whether a write would not wait."""
        return self.samples_per_insert is None or self._balance() <= self.tolerance

    def can_sample(self, rows: int, stored: int) -> bool:
        """Whether a sample of `rows` rows would not wait, with `stored` rows in the buffer."""
        if stored < self.min_size:
            return False
        return self.samples_per_insert is None or self._balance() - rows >= -self.tolerance

    def _balance(self) -> float:
        assert self.samples_per_insert is not None
        return self.samples_per_insert * (self.inserted - self.min_size) - self.sampled

    def await_insert(self) -> None:
        """Wait until a write is due.

        Raises:
            ReplayBufferError: it was not within the timeout.
        """
        with self._changed:
            waited, due = self._wait(self.can_insert, time.perf_counter())
            self.insert_waited += waited
        if not due:
            raise ReplayBufferError(
                f"no more rows may be written yet: {self._told()}. Sample more often, or raise tolerance or timeout."
            )

    def inserted_rows(self, rows: int) -> None:
        """Take note of a write; called with the buffer's lock, which processes that share it have in common."""
        with self._changed:
            self._counts[_INSERTED] += rows
            self._changed.notify_all()

    def await_sample(self, rows: int, stored: Callable[[], int], lock: AbstractContextManager[Any]) -> None:
        """Wait until a sample is due, and count it.

        Args:
            rows: the batch size.
            stored: gives the number of rows in the buffer, without its lock.
            lock: the buffer's.

        Raises:
            ReplayBufferError: it was not within the timeout, or never can be.
        """
        if self.samples_per_insert is not None and rows > 2 * self.tolerance:
            raise ReplayBufferError(
                f"a batch of {rows} rows does not fit into a tolerance of {self.tolerance:g}: it must be at least half "
                "a batch, or writes and samples wait for each other"
            )
        start = time.perf_counter()
        while True:
            with self._changed:
                waited, due = self._wait(lambda: self.can_sample(rows, stored()), start)
                self.sample_waited += waited
            if not due:
                raise ReplayBufferError(
                    f"{rows} more rows may not be sampled yet: {self._told()}, {stored()} are stored. Write more, or "
                    "raise the tolerance or timeout."
                )
            with lock, self._changed:
                if self.can_sample(rows, stored()):  # nobody else has taken what was due
                    self._counts[_SAMPLED] += rows
                    self._changed.notify_all()
                    return

    def withdraw_sample(self, rows: int, lock: AbstractContextManager[Any]) -> None:
        """Take back a sample that failed."""
        with lock, self._changed:
            self._counts[_SAMPLED] -= rows
            self._changed.notify_all()

    def _wait(self, due: Callable[[], bool], since: float) -> tuple[float, bool]:
        """Seconds waited, and whether it is due; not beyond the timeout, counted from `since`."""
        start = time.perf_counter()
        while not due():
            now = time.perf_counter()
            left = None if self.timeout is None else self.timeout - (now - since)
            if left is not None and left <= 0:
                return now - start, False
            self._changed.wait((_POLL if left is None else min(left, _POLL)) if self._shared else left)
        return time.perf_counter() - start, True

    def _told(self) -> str:
        ratio = "any number of" if self.samples_per_insert is None else f"{self.samples_per_insert:g}"
        return (
            f"{self.inserted} were written and {self.sampled} sampled, where {ratio} samples per row beyond the first "
            f"{self.min_size} are wanted, give or take {self.tolerance:g}"
        )

    def restart(self) -> None:
        """Count from 0, with an empty buffer."""
        with self._changed:
            self._counts[_INSERTED] = self._counts[_SAMPLED] = 0
            self._changed.notify_all()

    def share(self, counts: MutableSequence[int]) -> None:
        """Keep the counts where the processes of a shared buffer see them."""
        with self._changed:
            counts[_INSERTED], counts[_SAMPLED] = self._counts[_INSERTED], self._counts[_SAMPLED]
            self._counts, self._shared = counts, True

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"inserted": self.inserted, "sampled": self.sampled}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on from the saved counts."""
        with self._changed:
            self._counts[_INSERTED], self._counts[_SAMPLED] = int(state_dict["inserted"]), int(state_dict["sampled"])
            self._changed.notify_all()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_changed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return (
            f"RateLimiter(samples_per_insert={self.samples_per_insert}, min_size={self.min_size}, "
            f"tolerance={self.tolerance:g}, timeout={self.timeout})"
        )
