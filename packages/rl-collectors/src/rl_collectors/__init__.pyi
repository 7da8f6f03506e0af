__version__: str
from .budget import FrameBudget as FrameBudget
from .serial import Collector as Collector
from .serial import SyncDataCollector as SyncDataCollector
from .split import split_trajectories as split_trajectories
