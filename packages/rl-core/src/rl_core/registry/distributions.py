"""What the installed distributions offer, by their metadata: nothing is imported, no broken one stops the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rl_core.registry.entry import Entry, Problem, normalized
from rl_core.registry.groups import PREFIX, short_group

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

__all__ = ["Scan", "from_entry_points", "scan_installed"]

_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True)
class Scan:
    """The offered names and the distributions whose list of names is unreadable."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[Problem, ...] = ()
    path: tuple[str, ...] = field(default=(), repr=False)

    @cached_property
    def groups(self) -> dict[str, tuple[Entry, ...]]:
        """The entries by group."""
        groups: dict[str, list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.group, []).append(entry)
        return {group: tuple(entries) for group, entries in groups.items()}

    def named(self, group: str, name: str) -> tuple[Entry, ...]:
        """The entries of the group that ``name`` means; more than one where distributions clash."""
        return tuple(entry for entry in self.groups.get(group, ()) if entry.is_named(name))


def scan_installed(path: Iterable[str]) -> Scan:
    """Read the metadata of every distribution on ``path`` (as a rule, ``sys.path``).

    A distribution found twice counts once: the first on the path wins, as for Python's own import.
    """
    import importlib.metadata  # here: 30 ms that a program without a plugin's name in it does not pay

    path = tuple(path)
    importlib.invalidate_caches()
    entries: list[Entry] = []
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    copies: dict[str, list[str]] = {}
    for dist in importlib.metadata.distributions(path=list(path)):
        folder = _folder(dist)
        if PurePath(folder).name.startswith("~"):  # what pip leaves behind when an upgrade could not delete a folder
            continue
        name = _name_of(dist)
        if name is None:
            continue
        if normalized(name) in seen:
            if seen[normalized(name)] != folder:
                copies.setdefault(normalized(name), []).append(folder)
            continue
        seen[normalized(name)] = folder
        read = _read(dist, name, folder)
        if isinstance(read, Problem):
            problems.append(read)
        else:
            entries += read
    found = tuple(replace(entry, copies=tuple(copies.get(normalized(entry.dist), ()))) for entry in entries)
    return Scan(found, tuple(problems), path)


def from_entry_points(given: Iterable[EntryPoint | Entry]) -> Scan:
    """A scan of hand-made entry points, for tests."""
    entries: list[Entry] = []
    for point in given:
        if isinstance(point, Entry):
            entries.append(replace(point, group=short_group(point.group)))
        elif point.dist is None:
            entries.append(Entry(short_group(point.group), point.name, point.value, dist="injected"))
        else:
            about = _about(point.dist, _name_of(point.dist) or "injected")
            entries.append(Entry(short_group(point.group), point.name, point.value, **about))
    return Scan(tuple(entries))


def _folder(dist: Distribution) -> str:
    # Distribution has no public way to say where its metadata lies.
    return str(getattr(dist, "_path", ""))


def _name_of(dist: Distribution) -> str | None:
    """The name from the folder's name (METADATA may be unreadable), else from METADATA, else None."""
    match = re.match(r"(.+?)(?:-[^-]*)?(?:-py[\d.]+)?\.(?:dist|egg)-info$", PurePath(_folder(dist)).name, re.IGNORECASE)
    if match:
        return match[1]
    try:
        return dist.metadata["Name"]
    except Exception:  # whatever is wrong with it: a distribution without any name offers nothing
        return None


def _read(dist: Distribution, name: str, folder: str) -> list[Entry] | Problem:
    """The plugins of one distribution."""
    try:
        text = dist.read_text("entry_points.txt")
        if not text or PREFIX not in text:
            return []
        points = [point for point in dist.entry_points if point.group.startswith(PREFIX)]
        places = {(point.group, point.name): point.value for point in reversed(points)}
    except Exception as error:  # a malformed file raises almost anything
        reason = f"entry_points.txt cannot be read ({type(error).__name__}: {error})"
        return Problem(name.replace("_", "-"), reason, folder) if _mentions_us(folder) else []
    about = _about(dist, name)
    return [
        Entry(short_group(group), point, value, location=folder, **about)
        for (group, point), value in reversed(places.items())
    ]


def _mentions_us(folder: str) -> bool:
    try:
        return PREFIX.encode() in Path(folder, "entry_points.txt").read_bytes()
    except OSError:
        return False


def _about(dist: Distribution, name: str) -> dict[str, Any]:
    """An entry's fields that METADATA tells; where it is unreadable, the name of its folder and the problem."""
    try:
        metadata: Any = dist.metadata
        # A missing field is None or an error, depending on Python's version: get() is None in all of them.
        true_name, version = metadata.get("Name"), metadata.get("Version")
        if not true_name or not version:
            raise ValueError("METADATA has no Name or no Version")
        return {"dist": true_name, "version": version, "requires_core": _requires_core(metadata)}
    except Exception as error:  # undecodable bytes, a missing file, an invalid requirement
        return {"dist": name.replace("_", "-"), "problem": f"{type(error).__name__}: {error}"}


def _requires_core(metadata: Any) -> str | None:
    """The specifier of ``Requires-Dist: rl-core``, with the markers that hold here."""
    parts: list[str] = []
    asked = False
    for line in metadata.get_all("Requires-Dist") or ():
        name = _REQUIREMENT_NAME.match(line)
        if name is None or normalized(name[1]) != "rl-core":
            continue
        from packaging.requirements import Requirement  # 15 ms that only a plugin's presence is worth

        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            asked = True
            parts += map(str, requirement.specifier)
    # Floors before caps, as people write them: ">" sorts after "<".
    return ",".join(sorted(parts, reverse=True)) if asked else None
