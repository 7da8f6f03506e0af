"""Try plugins in a process of their own: a crash, an exit or a hang of one is then a line in a report.

``python -m rl_core.cli.probe REQUEST RESULT``: REQUEST is a JSON file with ``path`` (the caller's ``sys.path``)
and ``entries`` (pairs of group and qualified name) or ``hooks``; RESULT gets one JSON line before and after each try,
so that the reader knows what was being tried when the process died. Files, not pipes: plugins print at import.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["probe_entry", "probe_hooks"]


def probe_entry(group: str, name: str) -> dict[str, Any]:
    """Import one plugin, and read its package's ``doctor_report()`` where it has one."""
    from rl_core import registry
    from rl_core.errors import PluginError

    begin = time.perf_counter()
    try:
        registry.group(group).get(name)
    except PluginError as error:
        return {"state": "broken", "detail": str(error), "seconds": time.perf_counter() - begin, "report": []}
    seconds = time.perf_counter() - begin
    entry = next(entry for entry in registry.group(group).entries() if entry.is_named(name))
    return {"state": "ok", "detail": "", "seconds": seconds, "report": _package_report(entry.value)}


def probe_hooks() -> dict[str, Any]:
    """Load the hook plugins and ask each for its rows."""
    import warnings

    from rl_core import hooks

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hooks.PluginWarning)
        manager = hooks.load()
        rows = [row for rows in manager.fire("doctor_report", {}) for row in rows]
    failures = [[name, "broken", str(error)] for name, error in manager.failures.items()]
    return {"state": "ok", "detail": "", "report": [*map(_row, rows), *failures]}


def _package_report(target: str) -> list[list[str]]:
    """The rows of ``doctor_report()`` in the plugin's top-level package, if it has one."""
    package = sys.modules.get(target.partition(":")[0].partition(".")[0])
    report = getattr(package, "doctor_report", None)
    if report is None:
        return []
    try:
        return [_row(row) for row in report()]
    except Exception as error:  # a report that fails is a finding, not a reason to stop
        return [["doctor_report", "broken", f"{type(error).__name__}: {error}"]]


def _row(row: Any) -> list[str]:
    return [str(cell) for cell in row]


def _main(request_file: str, result_file: str) -> None:
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    with open(result_file, "a", encoding="utf-8") as result:

        def tell(line: dict[str, Any]) -> None:
            result.write(json.dumps(line) + "\n")
            result.flush()

        for group, name in request.get("entries", ()):
            key = {"group": group, "name": name}
            tell({**key, "state": "trying"})
            tell({**key, **probe_entry(group, name)})
        if request.get("hooks"):
            tell({"hooks": True, **probe_hooks()})


if __name__ == "__main__":
    _main(*sys.argv[1:3])
