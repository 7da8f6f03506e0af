__version__: str
from .aliases import MultiSyncDataCollector as MultiSyncDataCollector
from .aliases import MultiaSyncDataCollector as MultiaSyncDataCollector
from .aliases import SyncDataCollector as SyncDataCollector
from .aliases import aSyncDataCollector as aSyncDataCollector
from .budget import FrameBudget as FrameBudget
from .process.async_ import AsyncCollector as AsyncCollector
from .process.multi_async import MultiAsyncCollector as MultiAsyncCollector
from .process.multi_sync import MultiSyncCollector as MultiSyncCollector
from .serial import Collector as Collector
from .split import split_trajectories as split_trajectories
from .weights.no_sync import NoWeightSyncScheme as NoWeightSyncScheme
from .weights.pipe import MultiProcessWeightSyncScheme as MultiProcessWeightSyncScheme
from .weights.scheme import WeightSyncScheme as WeightSyncScheme
from .weights.shared_memory import SharedMemWeightSyncScheme as SharedMemWeightSyncScheme
