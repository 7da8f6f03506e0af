"""The public API of our packages as text, a line per name, kept in packages/<dist>/api.txt.

::

    nox -s api                        fails where callers of what api.txt lists would break, within a major version
    nox -s api -- --update [DIST...]  writes api.txt; a release does it too
    nox -s api -- --update --breaking writes it although something breaks

Public is what a package's ``__init__.pyi`` files name, the public attributes of its classes included, and what the
modules of `BY_PATH` list in ``__all__``. What a third party defines is a bare name: its signature is not ours.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.version import Version

from api_diff import added, broken

__all__ = ["api_lines", "described", "main"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "packages"
BY_PATH = ("errors", "keys")  # modules that plugins import by their path


def api_lines(dist: str) -> list[str]:
    """All lines of an installed distribution, sorted."""
    package = dist.replace("-", "_")
    folder = Path(str(importlib.import_module(package).__file__)).parent
    lines: set[str] = set()
    for stub in sorted(folder.rglob("__init__.pyi")):
        module = ".".join([package, *stub.parent.relative_to(folder).parts])
        for name in _names_of(stub):
            lines.update(described(f"{module}.{name}", getattr(importlib.import_module(module), name), package))
    for module in BY_PATH:
        if folder.joinpath(f"{module}.py").is_file():
            lines.update(described(f"{package}.{module}", importlib.import_module(f"{package}.{module}"), package))
    return sorted(lines)


def described(name: str, value: Any, package: str) -> Iterator[str]:
    """The lines of one public name: itself, and its members where it is a class or an object of ours.

    Args:
        name: its full public name, e.g. "rl_core.EnvBase".
        value: what it stands for.
        package: the top-level package whose classes and functions are described in full.
    """
    if inspect.ismodule(value):
        yield name
        for member, content in _module_members(value, package):
            yield from described(f"{name}.{member}", content, package)
    elif inspect.isclass(value):
        ours = _is_ours(value.__module__, package)
        if issubclass(value, enum.Enum):  # its members; what else it has, few callers use
            yield from (name, *(f"{name}.{member}" for member in value.__members__))
        else:
            yield name + (_signature(value) if ours else "")
            yield from _members(name, value, package)
    elif callable(value) and _is_ours(getattr(value, "__module__", None) or "", package):
        yield name + _signature(value)
    else:
        yield name
        if _is_ours(type(value).__module__, package):
            yield from _members(name, type(value), package)


def _module_members(module: ModuleType, package: str) -> Iterator[tuple[str, Any]]:
    """What a module lists in ``__all__``, and its objects of ours (``registry.envs``), not what it imports."""
    for member, value in sorted(vars(module).items()):
        if member.startswith("_") or value is module or inspect.ismodule(value):
            continue
        of_ours = not inspect.isclass(value) and not inspect.isfunction(value) and _is_ours(_home(value), package)
        if member in module.__all__ or of_ours:
            yield member, value


def _home(value: Any) -> str:
    """The module of an object's class, of the object itself where it is a function bound to one."""
    return type(value.__self__).__module__ if inspect.ismethod(value) else type(value).__module__


def _members(name: str, kind: type, package: str) -> Iterator[str]:
    seen: set[str] = set()
    for owner in kind.__mro__:
        if not _is_ours(owner.__module__, package):
            continue
        fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
        annotated = fields | set(inspect.get_annotations(owner))
        for member in [*vars(owner), *sorted(annotated - vars(owner).keys())]:
            # A kit's checks (test_*) are what it asserts, not what its subclasses call.
            if member in seen or member.startswith(("_", "test_")):
                continue
            seen.add(member)
            yield f"{name}.{member}{_member_signature(vars(owner).get(member))}"


def _member_signature(value: Any) -> str:
    if isinstance(value, staticmethod):
        return _signature(value.__func__)
    if isinstance(value, classmethod):
        return _signature(value.__func__, bound=True)
    return _signature(value, bound=True) if inspect.isfunction(value) else ""


def _signature(value: Any, bound: bool = False) -> str:
    """``(a, b=1, *, c=...)``: names, and defaults where they are plain."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return "(*args, **kwargs)"
    if bound and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_plain(parameter.default))
        for parameter in parameters
    ]
    return str(inspect.Signature(plain))


class _Verbatim(str):
    """A text that a signature shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _plain(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return default
    text = repr(default)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _Verbatim("...")
    return _Verbatim(text if len(text) <= 40 and "\n" not in text else "...")


def _is_ours(module: str, package: str) -> bool:
    return module.partition(".")[0] == package


def _names_of(stub: Path) -> list[str]:
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    return [alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]


def _compare(dist: str, version: Version, lines: list[str], breaking: bool) -> list[str]:
    """What breaks within the major of the recorded version; prints what is new."""
    file = PACKAGES / dist / "api.txt"
    if not file.is_file():
        print(f"{dist}: no api.txt yet; `nox -s api -- --update {dist}` writes it")
        return []
    recorded = file.read_text(encoding="utf-8").splitlines()
    before = Version(recorded[0].split()[-1])
    new, found = added(recorded, lines), broken(recorded, lines)
    print(f"{dist} {version}: {len(new)} new since {before}, {len(found)} broken")
    print(*(f"  {fault}" for fault in found), sep="\n", end="\n" if found else "")
    return [] if breaking or version.major != before.major else found


def _version(dist: str) -> str:
    return str(importlib.import_module(f"{dist.replace('-', '_')}.__about__").__version__)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s api --", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dists", nargs="*", metavar="DIST", help="only these distributions")
    parser.add_argument("--update", action="store_true", help="write api.txt, unless something would break")
    parser.add_argument("--breaking", action="store_true", help="let something break")
    parser.add_argument("--version", help="the version to record and compare as; the installed one")
    given = parser.parse_args(arguments)
    dists = given.dists or sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml"))
    failed = False
    for dist in dists:
        version = given.version or _version(dist)
        lines = api_lines(dist)
        found = _compare(dist, Version(version), lines, given.breaking)
        failed |= bool(found)
        if given.update and not found:
            text = "\n".join([f"# Public API of {dist} {version}", *lines, ""])
            (PACKAGES / dist / "api.txt").write_text(text, encoding="utf-8")
    if failed:
        print("Within a major version callers must go on working: keep the old way beside the new one, deprecated.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
