"""``NoWeightSyncScheme``: the workers keep the policy they were started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rl_collectors.weights.scheme import WeightChannel, WeightReceiver, WeightSource, WeightSyncScheme
from rl_core.errors import CollectorError

__all__ = ["NoWeightSyncScheme"]


class NoWeightSyncScheme(WeightSyncScheme):
    """Sends nothing, for policies that are not trained; versions still count the calls, and data keep version 0."""

    def send(self, weights: Any = None, worker_ids: list[int] | None = None) -> int:
        """Do nothing.

        Returns:
            The number of calls.
        """
        self._version += 1
        return self._version

    def _parts(self, weights: Mapping[str, Tensor], channels: Sequence[WeightChannel]) -> list[Sequence[Any]]:
        return [() for _ in channels]

    def receiver(self) -> WeightReceiver:
        return _Nothing()


class _Nothing(WeightReceiver):
    def receive(self, source: WeightSource) -> Mapping[str, Tensor]:
        raise CollectorError("NoWeightSyncScheme sends no weights, yet a request for some came")
