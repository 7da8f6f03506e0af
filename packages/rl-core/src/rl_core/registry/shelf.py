"""What a registry remembers: the scan, the registrations of this process, what was loaded, and what failed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rl_core.errors import PluginError
from rl_core.registry.distributions import Scan, from_entry_points, scan_installed
from rl_core.registry.entry import Entry

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Memory", "Shelf"]


@dataclass
class Memory:
    """One layer of memory; ``registry.isolated()`` puts another on top of it and takes it away again.

    Args:
        injected: the entry points of a test; None where the installed distributions count.
        keep_installed: whether the installed distributions count beside the injected entry points.
    """

    injected: Scan | None = None
    keep_installed: bool = True
    registered: dict[tuple[str, str], Any] = field(default_factory=dict)
    loaded: dict[Entry, Any] = field(default_factory=dict)
    failures: dict[Entry, PluginError] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    """What other parts of the core keep as long as this layer lasts (the hook manager)."""
    scanned: Scan | None = None

    def scan(self, fresh: bool = False) -> Scan:
        """The offered names; read again when ``sys.path`` has changed or ``fresh`` is asked for."""
        if self.injected is not None and not self.keep_installed:
            return self.injected
        path = tuple(sys.path)
        if fresh or self.scanned is None or self.scanned.path != path:
            installed = scan_installed(path)
            added = self.injected or Scan()
            self.scanned = Scan(added.entries + installed.entries, added.problems + installed.problems, path)
        return self.scanned


class Shelf:
    """The layer of memory that is in use, shared by all groups of one registry."""

    def __init__(self) -> None:
        self.memory = Memory()

    def layer(self, entry_points: Iterable[EntryPoint | Entry] | None, keep_installed: bool) -> Memory:
        """A new layer: the registrations so far, nothing loaded, and the given entry points."""
        below = self.memory
        if entry_points is None:
            injected, keep_installed = below.injected, below.keep_installed
        else:
            injected = from_entry_points(entry_points)
        return Memory(injected, keep_installed, registered=dict(below.registered))
