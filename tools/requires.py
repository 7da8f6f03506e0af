"""What packages ask of each other, read from their pyproject.toml, and whether it is fit to be released."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from history import about_path, literal_version, releases

if sys.version_info >= (3, 11):
    import tomllib
else:  # nox brings it there
    import tomli as tomllib

__all__ = ["CORE", "core_requirement_faults", "core_specifier", "fits", "read_requirements", "requirements"]

CORE = "rl-core"


def requirements(pyproject: str) -> list[Requirement]:
    """The dependencies in the text of a pyproject.toml, those of the extras included."""
    project: dict[str, Any] = tomllib.loads(pyproject)["project"]
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(line) for line in [*project.get("dependencies", []), *(line for e in extras for line in e)]]


def read_requirements(folder: Path) -> list[Requirement]:
    """The dependencies of a package's folder, those of its extras included."""
    return requirements((folder / "pyproject.toml").read_text(encoding="utf-8"))


def core_specifier(needs: Iterable[Requirement]) -> SpecifierSet | None:
    """The range of rl-core among dependencies; None where there is none."""
    return next((need.specifier for need in needs if need.name == CORE), None)


def fits(core: Version, asked: SpecifierSet | None) -> bool:
    """Whether a core satisfies a range, by its base version: 0.9.1.dev0 counts as 0.9.1, as in the handshake."""
    return asked is None or asked.contains(Version(core.base_version))


def core_requirement_faults(root: Path, dist: str, version: Version) -> list[str]:
    """Why the requirements of the tree are not fit for the release of a distribution.

    Every plugin must accept the core in the tree. A plugin that is released must ask for ``rl-core>=X,<MAJOR``, with
    an X that a released core satisfies, and for no development version of anything of ours.
    """
    core = version if dist == CORE else literal_version((root / about_path(CORE)).read_text(encoding="utf-8"))
    found = []
    for folder in sorted(path.parent for path in root.glob("packages/*/pyproject.toml")):
        asked = core_specifier(read_requirements(folder))
        if folder.name != CORE and not fits(core, asked):
            found.append(f"{folder.name} asks for {CORE}{asked}, which {CORE} {core} does not satisfy")
    return found if dist == CORE else found + _shape_faults(root, dist)


def _shape_faults(root: Path, dist: str) -> list[str]:
    folder = root / "packages" / dist
    needs, where = read_requirements(folder), f"packages/{dist}/pyproject.toml"
    asked = core_specifier(needs)
    if asked is None:
        return [f"{where} does not require {CORE}: add {CORE}>=X,<MAJOR"]
    if sorted(clause.operator for clause in asked) != ["<", ">="]:
        return [f"{where} asks for {CORE}{asked}: write a floor and a cap on the major, as in {CORE}>=0.9,<2"]
    bounds = {clause.operator: Version(clause.version) for clause in asked}
    if str(bounds["<"]) != str(bounds["<"].major):
        return [f"{where} caps {CORE} at {bounds['<']}: a cap is on the major, as in {CORE}>=0.9,<2"]
    ours = {path.parent.name for path in root.glob("packages/*/pyproject.toml")}
    found = []
    for need in needs:
        if need.name in ours and any(Version(c.version.removesuffix(".*")).is_prerelease for c in need.specifier):
            cure = ".".join(str(part) for part in bounds[">="].release[:2])
            hint = f": write {CORE}>={cure},<{bounds['<']}" if need.name == CORE else ": write a released version"
            found.append(f"{where} asks for {need}, a version that nobody can install{hint}")
    cores = [release.version for release in releases(root, CORE)]
    if not found and not any(asked.contains(core, prereleases=True) for core in cores):
        known = ", ".join(map(str, cores)) or "none"
        found.append(f"no released {CORE} satisfies {CORE}{asked} of {dist} (released: {known}): release {CORE} first")
    return found
