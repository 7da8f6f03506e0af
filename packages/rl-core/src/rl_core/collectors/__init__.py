"""Collector contracts: what yields batches, and what carries weights to whoever acts."""

from rl_core.collectors.contract import BaseCollector as BaseCollector
from rl_core.collectors.weight_sync import WeightSync as WeightSync
