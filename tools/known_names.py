"""Write the table of the names that our distributions offer, from their entry points.

    python tools/known_names.py

``rl_core`` answers an absent name with the command that installs it, so it must know the names of packages that are
not there. A test compares the table with what this script would write.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "packages" / "rl-core" / "src" / "rl_core" / "registry" / "known.py"
START, END = "# Written by tools/known_names.py:\n", "# End of what is written.\n"

EXTRAS = {
    ("rl-llm", "envs", "chat"): "transformers",
    ("rl-buffers", "datasets", "lerobot"): "parquet",
    **{("rl-trainers", "recipes", name): "marl" for name in ("mappo", "ippo", "qmix")},
    **{("rl-trainers", "recipes", name): "llm" for name in ("grpo", "sft")},
}
"""The extras that a name needs where they are not called as it is."""


def requirement(project: dict, group: str, name: str) -> str:
    """What to install for a name: the distribution, with the extra that is about it if there is one."""
    dist, extras = project["name"], project.get("optional-dependencies", {})
    extra = EXTRAS.get((dist, group, name))
    if extra is None and group in ("envs", "datasets", "loggers", "collectors", "buffers") and name in extras:
        extra = name
    if extra is None and group == "recipes" and "recipes" in extras:
        extra = "recipes"
    return dist if extra is None else f"{dist}[{extra}]"


def offered() -> dict[str, dict[str, list[str]]]:
    """Group -> requirement -> names, all sorted."""
    table: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        for group, names in project.get("entry-points", {}).items():
            kind = group.removeprefix("rl_core.")
            if kind in ("hooks", "commands") or not group.startswith("rl_core."):
                continue
            for name in names:
                table[kind][requirement(project, kind, name)].append(name)
    return {kind: {need: sorted(names) for need, names in sorted(by.items())} for kind, by in sorted(table.items())}


def rendered() -> str:
    """The table as source code, in lines of at most 120 columns."""
    lines = ["_OFFERED: dict[str, dict[str, str]] = {"]
    for group, by in offered().items():
        lines.append(f'    "{group}": {{')
        for need, names in by.items():
            lines += _entry(need, names)
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def _entry(need: str, names: list[str]) -> list[str]:
    whole = f'        "{need}": "{" ".join(names)}",'
    if len(whole) <= 120:
        return [whole]
    rows, row = [], ""
    for name in names:
        if len(row) + len(name) > 105:  # 120 columns, as the formatter joins what fits
            rows.append(row)
            row = ""
        row += f"{name} "
    rows.append(row.rstrip())
    return [f'        "{need}": (', *(f'            "{row}"' for row in rows), "        ),"]


def updated(source: str) -> str:
    """The source of the table with the names of now."""
    return re.sub(f"(?s){re.escape(START)}.*?{re.escape(END)}", lambda _: START + rendered() + END, source)


def write(table: Path = TABLE) -> None:
    """Put the names of now into the table, in one go: whoever imports it meanwhile finds the old one or the new one."""
    fresh = table.with_name(f"{table.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(updated(table.read_text(encoding="utf-8")), encoding="utf-8")
        shutil.copymode(table, fresh)
        fresh.replace(table)
    finally:
        fresh.unlink(missing_ok=True)


if __name__ == "__main__":
    write()
