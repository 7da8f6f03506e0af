"""Which distributions a package declares, all the way down, and links to them for an environment of exactly these."""

from __future__ import annotations

import email
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["closure", "link", "wheel_requirements"]


def wheel_requirements(wheel: Path) -> list[str]:
    """The ``Requires-Dist`` lines of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode("utf-8")
    return email.message_from_string(text).get_all("Requires-Dist") or []


def closure(dist: str, extras: set[str], ours: Mapping[str, list[str]], site_packages: Path) -> set[str]:
    """Names of all distributions that ``dist[extras]`` needs, itself included.

    Args:
        dist: the distribution to start from.
        extras: the extras of it that count.
        ours: ``Requires-Dist`` lines of the distributions that are not in ``site_packages``.
        site_packages: where the others are installed.
    """
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(str(canonicalize_name(dist)), frozenset(extras))]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        lines = ours[name] if name in ours else _installed(name, site_packages).requires or []
        todo += [
            (str(canonicalize_name(requirement.name)), frozenset(requirement.extras))
            for requirement in map(Requirement, lines)
            if _applies(requirement, wanted)
        ]
    return {name for name, _ in seen}


def link(name: str, source: Path, target: Path) -> None:
    """Make an installed distribution importable from another ``site-packages``, by links to its top-level entries."""
    files = _installed(name, source).files or []
    for entry in sorted({file.parts[0] for file in files} - {"..", "__pycache__"}):
        if not (target / entry).exists():
            (target / entry).symlink_to(source / entry)


def _installed(name: str, site_packages: Path) -> metadata.Distribution:
    found = next(iter(metadata.distributions(name=name, path=[str(site_packages)])), None)
    if found is None:
        raise SystemExit(f"{name} is a declared dependency that requirements/dev.txt does not bring: add it there")
    return found


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})
