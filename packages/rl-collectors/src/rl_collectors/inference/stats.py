"""What a server of a policy counts: requests, batches, how long they take."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

import torch

__all__ = ["InferenceStats"]

_KEPT = 10_000


class InferenceStats:
    """Counts of a server; percentiles are those of the last ten thousand batches and requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            self.began = time.monotonic()
            self.requests = self.rows = self.batches = self.failures = 0
            self.busy = 0.0
            self._sizes: deque[int] = deque(maxlen=_KEPT)
            self._computing: deque[float] = deque(maxlen=_KEPT)
            self._waiting: deque[float] = deque(maxlen=_KEPT)

    def count(self, rows: int, waited: Sequence[float], computed: float, failed: bool) -> None:
        """Note a batch.

        Args:
            rows: of the batch.
            waited: seconds that each of its requests waited.
            computed: seconds that the policy took.
            failed: whether it raised.
        """
        with self._lock:
            self.batches += 1
            self.requests += len(waited)
            self.rows += rows
            self.failures += failed
            self.busy += computed
            self._sizes.append(rows)
            self._computing.append(computed)
            self._waiting.extend(waited)

    def read(self) -> dict[str, float]:
        """The numbers; see :meth:`rl_collectors.InferenceServer.stats`."""
        with self._lock:
            elapsed = time.monotonic() - self.began
            sizes, computing, waiting = list(self._sizes), list(self._computing), list(self._waiting)
            counts: dict[str, float] = {
                "requests": self.requests,
                "rows": self.rows,
                "batches": self.batches,
                "failures": self.failures,
                "batch_size_mean": self.rows / self.batches if self.batches else 0.0,
                "policy_share": self.busy / elapsed if elapsed else 0.0,
            }
        counts.update(_percentiles("batch_size", sizes, 1.0))
        counts.update(_percentiles("waiting_ms", waiting, 1e3))
        counts.update(_percentiles("computing_ms", computing, 1e3))
        return counts


def _percentiles(name: str, values: Sequence[float], unit: float) -> dict[str, float]:
    quantiles = (0.5, 0.95, 0.99)
    if not values:
        return {f"{name}_p{round(100 * q)}": 0.0 for q in quantiles}
    found = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor(quantiles, dtype=torch.float64)) * unit
    return {f"{name}_p{round(100 * q)}": value for q, value in zip(quantiles, found.tolist(), strict=True)}
