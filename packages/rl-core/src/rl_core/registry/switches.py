"""The environment variables that turn plugins off, or their faults into errors."""

from __future__ import annotations

import os

from rl_core.registry.entry import Entry, normalized
from rl_core.registry.groups import short_group

__all__ = ["DISABLE", "STRICT", "disabled_by", "is_strict", "unused_switches"]

DISABLE = "RL_DISABLE_PLUGINS"
STRICT = "RL_STRICT_PLUGINS"


def is_strict() -> bool:
    """Whether a broken hook plugin is an error instead of a warning (CI sets ``RL_STRICT_PLUGINS=1``)."""
    return os.environ.get(STRICT, "") not in ("", "0")


def disabled_by(entry: Entry) -> str | None:
    """The item of ``RL_DISABLE_PLUGINS`` that turns this entry off, None where none does.

    An item is a distribution (``my-dist``) or one name of a group (``losses:ppo``).
    """
    switches = os.environ.get(DISABLE)
    if not switches:
        return None
    return next((item for item in _items(switches) if _means(item, entry)), None)


def unused_switches(entries: tuple[Entry, ...]) -> list[str]:
    """The items of ``RL_DISABLE_PLUGINS`` that turn nothing off: most likely misspelt."""
    return [item for item in _items(os.environ.get(DISABLE, "")) if not any(_means(item, entry) for entry in entries)]


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _means(item: str, entry: Entry) -> bool:
    group, colon, name = item.partition(":")
    if colon:
        return short_group(group) == entry.group and name == entry.name
    return normalized(item) == normalized(entry.dist)
