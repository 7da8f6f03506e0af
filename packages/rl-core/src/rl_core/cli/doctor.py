"""``rl doctor``: try every plugin, compare versions, list conflicts, and end with a block to paste in a bug report."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

from rl_core import registry as _registry
from rl_core.cli.examine import Finding, conflicts_of, examine, examine_hooks
from rl_core.cli.table import text_table
from rl_core.errors import UnknownNameError
from rl_core.registry.entry import Entry, normalized
from rl_core.registry.errors_text import close_match
from rl_core.registry.handshake import core_version
from rl_core.registry.status import Status, statuses
from rl_core.registry.switches import unused_switches

__all__ = ["DoctorCommand"]

_FINE = ("ok", "disabled", "duplicate")


class DoctorCommand:
    """Examine what is installed."""

    help = "Import every plugin (or those of DIST) in a process of its own; report versions, conflicts, native parts."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("dist", nargs="?", metavar="DIST", help="one distribution only, for example rl-envs")
        parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one distribution (default: 120)")

    def run(self, args: argparse.Namespace) -> int:
        rows = _chosen(statuses(_registry), args.dist)
        tried = {f.entry: f for f in examine([r.entry for r in rows if r.state in ("ok", "duplicate")], args.timeout)}
        dists = sorted({row.entry.dist for row in rows})
        conflicts = [text for dist in ["rl-core", *dists] for text in conflicts_of(dist)] + _clashes(rows)
        conflicts += [f"RL_DISABLE_PLUGINS={item} turns nothing off" for item in unused_switches(_registry.entries())]
        lines = _plugin_lines(rows, tried)
        reports = _report_lines(list(tried.values()), args.timeout, hooks=any(r.entry.group == "hooks" for r in rows))
        bad = [row for row in rows if _state(row, tried) not in _FINE]
        print(lines)
        _section("what the plugins say of themselves", reports)
        _section("conflicts", conflicts)
        _section("what to do", _advice(rows, tried))
        print(_bug_report(dists, [_bad_line(row, tried) for row in bad], reports, conflicts))
        return int(bool(bad or conflicts))


def _chosen(rows: list[Status], dist: str | None) -> list[Status]:
    if dist is None:
        return rows
    chosen = [row for row in rows if normalized(row.entry.dist) == normalized(dist)]
    if not chosen:
        dists = sorted({row.entry.dist for row in rows})
        raise UnknownNameError(
            f"no installed distribution {dist!r} offers plugins{close_match(dist, dists)}; there are: "
            f"{', '.join(dists) or 'none'}"
        )
    return chosen


def _state(row: Status, tried: dict[Entry, Finding]) -> str:
    finding = tried.get(row.entry)
    return row.state if finding is None or finding.state == "ok" else finding.state


def _clashes(rows: list[Status]) -> list[str]:
    claims: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.state == "duplicate":
            claims.setdefault((row.entry.group, row.entry.name), []).append(row.entry.owner)
    return [f"{group} {name} is offered by {' and '.join(owners)}" for (group, name), owners in claims.items()]


def _plugin_lines(rows: list[Status], tried: dict[Entry, Finding]) -> str:
    if not rows:
        return "no plugin is installed"
    cells = []
    for row in rows:
        finding = tried.get(row.entry)
        seconds = f"{finding.seconds:.2f} s" if finding is not None and finding.seconds else ""
        cells.append((row.entry.group, row.entry.name, row.entry.owner, _state(row, tried), seconds))
    return text_table(("group", "name", "from", "state", "import"), cells)


def _report_lines(findings: list[Finding], timeout: float, hooks: bool) -> list[str]:
    rows = [row for finding in findings for row in finding.report]
    rows += examine_hooks(timeout) if hooks else []
    return list(dict.fromkeys("  ".join(row) for row in rows))  # each entry of a package repeats its report


def _advice(rows: list[Status], tried: dict[Entry, Finding]) -> list[str]:
    return [f"{row.entry.group} {row.entry.qualified}: {detail}" for row in rows if (detail := _detail(row, tried))]


def _detail(row: Status, tried: dict[Entry, Finding]) -> str:
    finding = tried.get(row.entry)
    return finding.detail if finding is not None and finding.detail else row.detail


def _section(title: str, lines: list[str]) -> None:
    if lines:
        print(f"\n{title}:")
        print("\n".join(f"  {line}" for line in lines))


def _bad_line(row: Status, tried: dict[Entry, Finding]) -> str:
    return f"{row.entry.group} {row.entry.qualified}: {_state(row, tried)}: {_detail(row, tried)}"


def _bug_report(dists: list[str], bad: list[str], reports: list[str], conflicts: list[str]) -> str:
    """Everything that a maintainer asks for first, as one block."""
    lines = [f"python {platform.python_version()} ({sys.executable})", f"platform {platform.platform()}"]
    lines += [f"rl-core {core_version()}"]
    lines += [f"{dist} {_version(dist)}" for dist in ("torch", "tensordict", "numpy", "pluggy", "packaging", *dists)]
    lines += [f"not usable: {text}" for text in bad]
    lines += [f"conflict: {text}" for text in conflicts]
    lines += [f"says: {text}" for text in reports]
    return "\n".join(["", "paste this in a bug report:", "```text", *lines, "```"])


def _version(dist: str) -> str:
    try:
        return importlib.metadata.version(dist)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
    except Exception as error:  # unreadable metadata raises almost anything
        return f"unreadable ({type(error).__name__})"
