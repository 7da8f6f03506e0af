"""Older names of collectors, which are still in every tutorial."""

from __future__ import annotations

from rl_collectors.process.async_ import AsyncCollector
from rl_collectors.process.multi_async import MultiAsyncCollector
from rl_collectors.process.multi_sync import MultiSyncCollector
from rl_collectors.serial import Collector

__all__ = ["MultiSyncDataCollector", "MultiaSyncDataCollector", "SyncDataCollector", "aSyncDataCollector"]

SyncDataCollector = Collector
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector
aSyncDataCollector = AsyncCollector  # noqa: N816
