"""The registry: all groups together, one memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rl_core.registry import errors_text
from rl_core.registry.entry import Entry, Problem
from rl_core.registry.env_group import EnvGroup
from rl_core.registry.group import Group
from rl_core.registry.groups import GROUPS, short_group
from rl_core.registry.hook_group import HookGroup
from rl_core.registry.shelf import Memory, Shelf

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry"]


class Registry:
    """What is installed and registered, by group and name."""

    missing_extra = staticmethod(errors_text.missing_extra)
    unknown_id = staticmethod(errors_text.unknown_id)

    def __init__(self) -> None:
        self._shelf = shelf = Shelf()
        self.envs = EnvGroup("envs", shelf)
        self.transforms = Group("transforms", shelf)
        self.modules = Group("modules", shelf)
        self.losses = Group("losses", shelf)
        self.estimators = Group("estimators", shelf)
        self.collectors = Group("collectors", shelf)
        self.storages = Group("storages", shelf)
        self.samplers = Group("samplers", shelf)
        self.writers = Group("writers", shelf)
        self.buffers = Group("buffers", shelf)
        self.target_updates = Group("target_updates", shelf)
        self.datasets = Group("datasets", shelf)
        self.recipes = Group("recipes", shelf)
        self.loggers = Group("loggers", shelf)
        self.weight_syncs = Group("weight_syncs", shelf)
        self.hooks = HookGroup("hooks", shelf)
        self.commands = Group("commands", shelf)

    def groups(self) -> dict[str, Group]:
        """Every group by its name."""
        return {name: getattr(self, name) for name in GROUPS}

    def group(self, name: str) -> Group:
        """One group, with or without the prefix ``rl_core.``.

        Raises:
            UnknownNameError: no such group.
        """
        if short_group(name) not in GROUPS:
            raise errors_text.unknown_group(name)
        found: Group = getattr(self, short_group(name))
        return found

    def entries(self) -> tuple[Entry, ...]:
        """Every offer of every installed distribution, usable or not; nothing is imported."""
        return self._shelf.memory.scan().entries

    def problems(self) -> tuple[Problem, ...]:
        """The distributions whose list of plugins cannot be read."""
        return self._shelf.memory.scan().problems

    def refresh(self) -> None:
        """Read the installed metadata again, after something was installed or removed in a running process."""
        self._shelf.memory.scan(fresh=True)

    def memory(self) -> Memory:
        """The layer of memory in use, for parts of the core that keep something as long as it lasts."""
        return self._shelf.memory

    @contextmanager
    def isolated(
        self, entry_points: Iterable[EntryPoint | Entry] | None = None, *, keep_installed: bool = False
    ) -> Iterator[None]:
        """For tests: whatever is registered, loaded or failed inside is forgotten at the end.

        Args:
            entry_points: the only entry points inside; None leaves the installed ones.
            keep_installed: whether the installed ones count beside the given ones.

        Example:
            >>> from rl_core.registry import Entry, registry
            >>> with registry.isolated(entry_points=[Entry("losses", "mine", "math:sqrt", dist="a-dist")]):
            ...     registry.losses.get("mine")(9.0)
            3.0
        """
        below = self._shelf.memory
        self._shelf.memory = self._shelf.layer(entry_points, keep_installed)
        try:
            yield
        finally:
            self._shelf.memory = below
