"""``rl plugins``: every offered name with its state, read from metadata; with ``--load``, every import tried."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rl_core import registry as _registry
from rl_core.cli.table import text_table
from rl_core.registry.handshake import core_version
from rl_core.registry.status import Status, statuses
from rl_core.registry.switches import unused_switches

__all__ = ["PluginsCommand"]


class PluginsCommand:
    """List what is installed."""

    help = "List every plugin with its state. Nothing is imported without --load."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("group", nargs="?", help="one group only, for example losses")
        parser.add_argument("--load", action="store_true", help="import every plugin and say which fail")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        rows = statuses(_registry, load=args.load)
        if args.group is not None:
            group = _registry.group(args.group).name
            rows = [row for row in rows if row.entry.group in (group, "?")]
        print(_as_json(rows) if args.json else _as_table(rows))
        for item in unused_switches(_registry.entries()):
            print(f"note: RL_DISABLE_PLUGINS={item} turns nothing off", file=sys.stderr)
        return int(any(row.state == "broken" for row in rows))


def _as_table(rows: list[Status]) -> str:
    if not rows:
        return "no plugin is installed; begin with: pip install 'rl-trainers[recipes]'"
    cells = [(row.entry.group, row.entry.name, row.entry.dist, row.entry.version or "?", row.state) for row in rows]
    notes = {f"{row.entry.dist}: {row.detail}" for row in rows if row.detail and row.state != "duplicate"}
    notes |= {f"{row.entry.group} {row.entry.name}: {row.detail}" for row in rows if row.state == "duplicate"}
    table = text_table(("group", "name", "dist", "version", "state"), cells)
    return "\n".join([table, *(["", *sorted(notes)] if notes else [])])


def _as_json(rows: list[Status]) -> str:
    plugins: list[dict[str, Any]] = [
        {
            "group": row.entry.group,
            "name": row.entry.name,
            "dist": row.entry.dist,
            "version": row.entry.version,
            "state": row.state,
            "detail": row.detail,
            "target": row.entry.value,
            "requires_core": row.entry.requires_core,
            "location": row.entry.location,
        }
        for row in rows
    ]
    return json.dumps({"core": core_version(), "plugins": plugins}, indent=2)
