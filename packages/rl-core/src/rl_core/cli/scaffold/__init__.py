"""The folder that ``rl new plugin`` writes: its names, what it can hold, and how the templates are filled in."""

from rl_core.cli.scaffold.kinds import KINDS, Kind
from rl_core.cli.scaffold.names import PluginNames
from rl_core.cli.scaffold.writing import write_plugin

__all__ = ["KINDS", "Kind", "PluginNames", "write_plugin"]
