"""API pages made from what the packages say of themselves: names from ``__init__.pyi``, plugins from metadata."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["public_names", "write_pages"]

ORDER = [
    "rl_core",
    "rl_envs",
    "rl_modules",
    "rl_collectors",
    "rl_buffers",
    "rl_objectives",
    "rl_trainers",
    "rl_marl",
    "rl_llm",
]


@dataclass(frozen=True)
class PublicName:
    """One line of a stub: ``from .gym.env import GymEnv as GymEnv``."""

    name: str
    module: str
    level: int

    @property
    def section(self) -> str:
        """The part of the package that it comes from: the first component of the module."""
        return self.module.split(".")[0]


def public_names(stub: Path) -> Iterator[PublicName]:
    """The names that a stub publishes, in its order."""
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield PublicName(alias.asname or alias.name, node.module or "", node.level)


def write_pages(packages: Path, target: Path) -> None:
    """Write a page for each package, the pages' index, and the table of entry points."""
    target.mkdir(parents=True, exist_ok=True)
    stubs = {stub.parent.name: stub for stub in packages.glob("*/src/*/__init__.pyi")}
    ordered = sorted(stubs, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    for package in ordered:
        _write(target / f"{package}.rst", _page(package, list(public_names(stubs[package]))))
    _write(target / "index.rst", _index(ordered))
    _write(target / "entry_points.md", _entry_points(packages))


def _page(package: str, names: list[PublicName]) -> str:
    title = package.replace("_", "-")
    lines = [title, "=" * len(title), "", f".. automodule:: {package}", "   :no-members:", ""]
    sections: dict[str, list[str]] = defaultdict(list)
    for public in names:
        if public.level:
            sections[public.section].append(public.name)
    for section in sorted(sections):
        lines += [
            section,
            "-" * len(section),
            "",
            ".. autosummary::",
            f"   :toctree: {package}",
            "   :nosignatures:",
            "",
        ]
        lines += [f"   ~{package}.{name}" for name in sorted(sections[section], key=str.lower)] + [""]
    elsewhere = sorted(public.name for public in names if not public.level)
    if elsewhere:
        links = ", ".join(f":py:obj:`~rl_core.{name}`" for name in elsewhere)
        lines += ["From rl-core", "------------", "", f"The same objects under both names: {links}.", ""]
    return "\n".join(lines)


def _index(packages: list[str]) -> str:
    lines = ["API reference", "=============", "", "Every public name is importable from its package's root.", ""]
    lines += [".. toctree::", "   :maxdepth: 1", ""]
    return "\n".join([*lines, *(f"   {package}" for package in packages), "   entry_points", ""])


def _entry_points(packages: Path) -> str:
    rows: dict[str, list[str]] = defaultdict(list)
    for file in sorted(packages.glob("*/pyproject.toml")):
        project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        for group, entries in project.get("entry-points", {}).items():
            rows[group] += [
                f"| `{name}` | {project['name']} | `{target}` |" for name, target in sorted(entries.items())
            ]
    lines = [
        "# Registered names",
        "",
        "What `rl plugins` lists when every package of this repository is installed.",
        "",
    ]
    for group in sorted(rows):
        lines += [f"## {group}", "", "| name | distribution | object |", "|---|---|---|", *rows[group], ""]
    return "\n".join(lines)


def _write(file: Path, text: str) -> None:
    """Write only what changed, so that an incremental build stays incremental."""
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")
