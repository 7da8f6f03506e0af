"""From an entry to its object: switches, handshake, import, kind, in this order, so that a misfit's code never runs."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any

from rl_core.errors import PluginError
from rl_core.registry import errors_text
from rl_core.registry.entry import Entry
from rl_core.registry.groups import GROUPS
from rl_core.registry.handshake import core_version, lagging_side
from rl_core.registry.switches import disabled_by

__all__ = ["fault", "load"]


def fault(entry: Entry) -> PluginError | None:
    """What stands against the entry by its metadata alone, None where nothing does."""
    if (switch := disabled_by(entry)) is not None:
        return errors_text.disabled(entry, switch)
    if entry.problem is not None:
        return errors_text.unreadable(entry.dist, entry.problem, entry.location)
    side = lagging_side(entry)
    if side == "core":
        return errors_text.core_too_old(entry, core_version())
    if side == "plugin":
        return errors_text.plugin_too_old(entry, core_version())
    return None


def load(entry: Entry) -> Any:
    """Import the entry's object.

    Raises:
        PluginError: the entry is turned off, or its metadata is unreadable.
        PluginVersionError: core and plugin do not fit; nothing was imported.
        PluginImportError: the import, or building the object, failed; the cause is chained.
        WrongKindError: the object is not what the group holds.
    """
    if (error := fault(entry)) is not None:
        raise error
    try:
        found = _import(entry.value)
    except (Exception, SystemExit) as cause:  # a plugin's import may do anything; only Ctrl-C is the user's own
        raise errors_text.broken_import(entry, cause, core_version()) from cause
    kind = GROUPS[entry.group]
    if not kind.admits(found):
        raise errors_text.wrong_kind(entry.group, entry.name, entry.owner, found)
    if kind.form == "object" and isinstance(found, type):
        try:
            return found()
        except (Exception, SystemExit) as cause:
            raise errors_text.broken_import(entry, cause, core_version()) from cause
    return found


def _import(value: str) -> Any:
    """The object at ``"module:attribute"``; extras in brackets, which packaging tools no longer write, are dropped."""
    module, _, attribute = value.partition("[")[0].partition(":")
    found = importlib.import_module(module.strip())
    return reduce(getattr, [part for part in attribute.strip().split(".") if part], found)
