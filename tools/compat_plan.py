"""Which versions are tested with each other: a new core with old plugins, old cores with new plugins.

New is what the tree holds, old the last releases; a plugin is also tested with its floor, the oldest released core that
it accepts. The plugin's own tests of its own version decide. Pairs that do not claim to fit are named, not tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from history import about_path, git, literal_version, releases
from requires import CORE, core_specifier, fits, requirements

__all__ = ["Cell", "Part", "cells", "in_tree"]


@dataclass(frozen=True)
class Part:
    """A distribution in one version: of a commit, or of the tree (``commit`` None)."""

    dist: str
    version: Version
    commit: str | None = None

    def __str__(self) -> str:
        return f"{self.dist} {self.version}"

    def needs(self, root: Path) -> list[Requirement]:
        """What it asks for, its extras included."""
        path = f"packages/{self.dist}/pyproject.toml"
        in_a_file = self.commit is None
        return requirements(
            (root / path).read_text("utf-8") if in_a_file else git(root, "show", f"{self.commit}:{path}")
        )


@dataclass(frozen=True)
class Cell:
    """A core, a plugin whose tests are run on it, and the plugins of the tree that those tests also use."""

    core: Part
    plugin: Part
    companions: tuple[Part, ...] = ()

    @property
    def name(self) -> str:
        """A folder's name."""
        return f"{self.plugin.dist}-{self.plugin.version}-on-core-{self.core.version}"


def in_tree(root: Path, dist: str) -> Part:
    """A distribution as the tree has it."""
    return Part(dist, literal_version((root / about_path(dist)).read_text(encoding="utf-8")))


def cells(root: Path, plugins: list[str], last: int = 1) -> tuple[list[Cell], list[str]]:
    """All cells, and a line for each pair or plugin that is left out.

    Args:
        root: the repository.
        plugins: distributions other than the core.
        last: how many releases of each distribution count as old.
    """
    new_core = in_tree(root, CORE)
    old_cores = [Part(CORE, release.version, release.commit) for release in releases(root, CORE)]
    pairs: list[tuple[Part, Part]] = []
    remarks = []
    for dist in plugins:
        old = [Part(dist, release.version, release.commit) for release in releases(root, dist)][-last:]
        if not old:
            remarks.append(f"{dist} has no release yet")
        new = in_tree(root, dist)
        accepted = [core for core in old_cores if fits(core.version, core_specifier(new.needs(root)))]
        pairs += [(new_core, plugin) for plugin in old]
        pairs += [(core, new) for core in dict.fromkeys([*accepted[:1], *old_cores[-last:]])]
    found = []
    for core, plugin in pairs:
        asked = core_specifier(plugin.needs(root))
        if fits(core.version, asked):
            found.append(Cell(core, plugin, _companions(root, core, plugin)))
        else:
            remarks.append(f"{plugin} asks for {CORE}{asked}: not tested with {core}")
    return found, remarks


def _companions(root: Path, core: Part, plugin: Part) -> tuple[Part, ...]:
    """The tree's versions of what the plugin's extras name of ours, where they accept this core."""
    ours = {path.parent.name for path in root.glob("packages/*/pyproject.toml")} - {CORE, plugin.dist}
    parts = [in_tree(root, name) for name in sorted({need.name for need in plugin.needs(root)} & ours)]
    return tuple(part for part in parts if fits(core.version, core_specifier(part.needs(root))))
