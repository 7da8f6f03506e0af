"""The state of every offer as ``rl plugins`` shows it: by metadata, and with the import tried only on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.errors import PluginError, PluginVersionError
from rl_core.registry.entry import Entry
from rl_core.registry.groups import GROUPS
from rl_core.registry.loading import fault
from rl_core.registry.switches import disabled_by

if TYPE_CHECKING:
    from rl_core.registry.catalogue import Registry

__all__ = ["Status", "statuses"]


@dataclass(frozen=True)
class Status:
    """One row of the list.

    Args:
        entry: the offer.
        state: ``ok``, ``disabled``, ``version mismatch``, ``unreadable``, ``duplicate``, ``unknown group``, and with
            the import tried also ``loaded`` or ``broken``.
        detail: why, and what to do; empty where all is well.
    """

    entry: Entry
    state: str
    detail: str = ""


def statuses(registry: Registry, load: bool = False) -> list[Status]:
    """Every offer with its state, sorted by group and name.

    Args:
        registry: the registry.
        load: import what can be imported.
    """
    entries = registry.entries()
    claims = _claims(entries)
    rows = [_status(registry, entry, claims, load) for entry in entries]
    for problem in registry.problems():
        rows.append(Status(Entry("?", "?", "?", problem.dist, location=problem.location), "unreadable", problem.text))
    order = {group: position for position, group in enumerate(GROUPS)}
    return sorted(rows, key=lambda row: (order.get(row.entry.group, len(order)), row.entry.name, row.entry.dist))


def _claims(entries: Iterable[Entry]) -> Counter[tuple[str, str]]:
    # Hooks do not clash: every one of them may react.
    return Counter((e.group, e.name) for e in entries if e.group != "hooks" and disabled_by(e) is None)


def _status(registry: Registry, entry: Entry, claims: Counter[tuple[str, str]], load: bool) -> Status:
    copies = f"also at {', '.join(entry.copies)}: the first on the path counts" if entry.copies else ""
    if (switch := disabled_by(entry)) is not None:
        return Status(entry, "disabled", f"RL_DISABLE_PLUGINS={switch}")
    if entry.group not in GROUPS:
        return Status(entry, "unknown group", f"this rl-core has no group rl_core.{entry.group}")
    error = fault(entry)
    if error is not None:
        state = "version mismatch" if isinstance(error, PluginVersionError) else "unreadable"
        return Status(entry, state, str(error))
    duplicate = claims[entry.group, entry.name] > 1
    if load:
        try:
            registry.group(entry.group).get(entry.qualified)
        except PluginError as failed:
            return Status(entry, "broken", str(failed))
    if duplicate:
        return Status(entry, "duplicate", f"say {entry.qualified!r}")
    return Status(entry, "loaded" if load else "ok", copies)
