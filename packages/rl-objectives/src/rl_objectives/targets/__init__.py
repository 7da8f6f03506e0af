"""Target updates: how a loss's frozen networks follow the trained ones."""

from rl_objectives.targets.hard_update import HardUpdate
from rl_objectives.targets.soft_update import SoftUpdate
from rl_objectives.targets.updater import TargetNetUpdater

__all__ = ["HardUpdate", "SoftUpdate", "TargetNetUpdater"]
