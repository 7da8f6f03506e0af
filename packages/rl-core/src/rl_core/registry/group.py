"""One group of names (``registry.losses``): listing reads metadata, a broken plugin fails for who asks for it."""

from __future__ import annotations

from typing import Any

from rl_core.errors import PluginError
from rl_core.registry import errors_text
from rl_core.registry.description import Description, describe_object
from rl_core.registry.entry import Entry, normalized
from rl_core.registry.groups import GROUPS
from rl_core.registry.known import requirement_for
from rl_core.registry.loading import fault, load
from rl_core.registry.shelf import Shelf
from rl_core.registry.switches import disabled_by

__all__ = ["Group"]


class Group:
    """The names of one kind of object, from entry points and from registrations in this process.

    Args:
        name: the group, as in ``rl_core.<name>``.
        shelf: the memory that all groups of a registry share.

    Example:
        >>> from rl_core import registry
        >>> with registry.isolated(entry_points=[]):
        ...     registry.losses.register("mine", dict.fromkeys)
        ...     registry.losses.names()
        ['mine']
    """

    def __init__(self, name: str, shelf: Shelf) -> None:
        self.name = name
        self._shelf = shelf

    def __repr__(self) -> str:
        return f"<registry group {self.name}: {', '.join(self.names()) or 'empty'}>"

    def __contains__(self, name: str) -> bool:
        return (self.name, name) in self._shelf.memory.registered or bool(self._offers(name))

    def names(self) -> list[str]:
        """The names that can be asked for, as far as metadata tells; nothing is imported."""
        usable = {entry.name for entry in self.entries() if fault(entry) is None}
        return sorted(usable | set(self.registered()))

    def registered(self) -> dict[str, Any]:
        """What this process has registered, by name."""
        return {name: found for (group, name), found in self._shelf.memory.registered.items() if group == self.name}

    def entries(self) -> tuple[Entry, ...]:
        """Every offer of every distribution, usable or not."""
        return self._shelf.memory.scan().groups.get(self.name, ())

    def get(self, name: str) -> Any:
        """The object behind a name, imported at its first use.

        Args:
            name: the name, or ``"dist/name"`` where two distributions offer it.

        Raises:
            UnknownNameError: nothing of that name is installed.
            PluginNotInstalledError: the name is known, its distribution is absent.
            AmbiguousNameError: two distributions offer the name.
            PluginVersionError: core and plugin do not fit.
            PluginImportError: the plugin's own import failed.
            WrongKindError: the object is not of this group's kind.
            PluginError: the plugin is turned off, or its metadata is unreadable.
        """
        registered = self._shelf.memory.registered
        if (self.name, name) in registered:
            return registered[self.name, name]
        return self._load(self._resolve(name))

    def owner(self, name: str) -> str:
        """Which distribution and version answers to the name, or ``"this process"``."""
        if (self.name, name) in self._shelf.memory.registered:
            return "this process"
        return self._resolve(name).owner

    def describe(self, name: str) -> Description | Any:
        """The object's signature, the first paragraph of its documentation and its distribution; imports it."""
        return describe_object(self.name, name, self.owner(name), self.get(name))

    def failures(self, load: bool = False) -> dict[str, PluginError]:
        """What cannot be used and why, by qualified name: misfits by metadata, and imports that have failed so far.

        Args:
            load: import every plugin of the group first, to find those that fail at import.
        """
        found: dict[str, PluginError] = {}
        for entry in self.entries():
            if disabled_by(entry) is not None:
                continue
            error = fault(entry) or (self._attempt(entry) if load else self._shelf.memory.failures.get(entry))
            if error is not None:
                found[entry.qualified] = error
        for problem in self._shelf.memory.scan().problems:
            found[problem.dist] = errors_text.unreadable(problem.dist, problem.text, problem.location)
        return found

    def register(self, name: str, found: Any, *, override: bool = False) -> None:
        """Offer an object under a name, in this process only.

        Args:
            name: a name without ``/`` and ``:``, which separate distribution, name and id.
            found: the object, of this group's kind; a class of providers is built at once.
            override: whether a name that exists may be hidden.

        Raises:
            AmbiguousNameError: the name exists and ``override`` is false.
            WrongKindError: the object is not of this group's kind.
        """
        if not name or "/" in name or ":" in name:
            raise ValueError(f"a name has neither '/' nor ':' and is not empty, got {name!r}")
        kind = GROUPS[self.name]
        if not kind.admits(found):
            raise errors_text.wrong_kind(self.name, name, "this process", found)
        key, registered = (self.name, name), self._shelf.memory.registered
        if not override:
            if key in registered and registered[key] is not found:
                raise errors_text.name_taken(self.name, name, "registered in this process")
            if offers := self._offers(name):
                raise errors_text.name_taken(self.name, name, " and ".join(entry.owner for entry in offers))
        registered[key] = found() if kind.form == "object" and isinstance(found, type) else found

    def unregister(self, name: str) -> None:
        """Take back a registration of this process.

        Raises:
            UnknownNameError: the name was not registered in this process.
        """
        registered = self._shelf.memory.registered
        if (self.name, name) not in registered:
            raise errors_text.not_registered(self.name, name, sorted(self.registered()))
        del registered[self.name, name]

    def _offers(self, name: str, fresh: bool = False) -> tuple[Entry, ...]:
        """The installed entries that the name means and that are not turned off."""
        named = self._shelf.memory.scan(fresh).named(self.name, name)
        return tuple(entry for entry in named if disabled_by(entry) is None)

    def _resolve(self, name: str) -> Entry:
        # The second look reads the metadata again: a plugin may have been installed since the first.
        offers = self._offers(name) or self._offers(name, fresh=True)
        if len(offers) == 1:
            return offers[0]
        if offers:
            raise errors_text.ambiguous(self.name, name, offers)
        raise self._absent(name)

    def _absent(self, name: str) -> PluginError:
        scan = self._shelf.memory.scan()
        for entry in scan.named(self.name, name):
            if (switch := disabled_by(entry)) is not None:
                return errors_text.disabled(entry, switch)
        requirement = requirement_for(self.name, name.rpartition("/")[2])
        if requirement is not None:
            dist = normalized(requirement.partition("[")[0])
            outdated = any(normalized(entry.dist) == dist for entry in scan.entries)
            return errors_text.known_but_absent(self.name, name, requirement, upgrade=outdated)
        return errors_text.unknown_name(self.name, name, self.names(), self.failures())

    def _load(self, entry: Entry) -> Any:
        memory = self._shelf.memory
        if entry in memory.loaded:
            return memory.loaded[entry]
        try:
            found = load(entry)
        except PluginError as error:
            memory.failures[entry] = error
            raise
        memory.failures.pop(entry, None)
        return memory.loaded.setdefault(entry, found)

    def _attempt(self, entry: Entry) -> PluginError | None:
        try:
            self._load(entry)
        except PluginError as error:
            return error
        return None
