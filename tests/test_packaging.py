"""What every package's metadata promises: licence, Python floor, core floor and cap, version, files, entry points."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
PLUGINS = [path for path in PACKAGES if path.name != "rl-core"]


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def version_of(folder: Path) -> str:
    """The literal ``__version__`` of ``__about__.py``; anything but one assignment of a string is refused."""
    about = folder / "src" / folder.name.replace("-", "_") / "__about__.py"
    assignments = [node for node in ast.parse(about.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    (assignment,) = assignments
    assert isinstance(assignment.targets[0], ast.Name) and assignment.targets[0].id == "__version__"
    return str(ast.literal_eval(assignment.value))


def ids(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize("folder", PACKAGES, ids=ids)
def test_a_package_says_its_licence_and_python_floor(folder: Path) -> None:
    metadata = project(folder)["project"]
    assert metadata["license"] == "MIT"
    assert SpecifierSet(metadata["requires-python"]) == SpecifierSet(">=3.10")
    assert metadata["name"] == folder.name


@pytest.mark.parametrize("folder", PACKAGES, ids=ids)
def test_a_package_has_a_readme_a_changelog_and_types(folder: Path) -> None:
    source = folder / "src" / folder.name.replace("-", "_")
    expected = [folder / "README.md", folder / "CHANGELOG.md", source / "py.typed", source / "__init__.pyi"]
    assert [path for path in expected if not path.is_file()] == []


@pytest.mark.parametrize("folder", PACKAGES, ids=ids)
def test_a_package_has_one_literal_version(folder: Path) -> None:
    assert Version(version_of(folder))
    assert project(folder)["project"]["dynamic"] == ["version"]


@pytest.mark.parametrize("folder", PLUGINS, ids=ids)
def test_a_plugin_has_a_core_floor_and_caps_its_major_only(folder: Path) -> None:
    requirements = map(Requirement, project(folder)["project"]["dependencies"])
    (core,) = (requirement for requirement in requirements if requirement.name == "rl-core")
    assert sorted(clause.operator for clause in core.specifier) == ["<", ">="]
    bounds = {clause.operator: Version(clause.version) for clause in core.specifier}
    assert bounds["<"] == Version("2")
    assert bounds[">="] <= Version(version_of(ROOT / "packages" / "rl-core"))


@pytest.mark.parametrize("folder", PACKAGES, ids=ids)
def test_a_package_pins_and_caps_no_library(folder: Path) -> None:
    for requirement in map(Requirement, project(folder)["project"]["dependencies"]):
        if requirement.name != "rl-core":
            assert [clause.operator for clause in requirement.specifier] == [">="], str(requirement)


@pytest.mark.parametrize("folder", PACKAGES, ids=ids)
def test_an_entry_point_names_an_object_of_the_package(folder: Path) -> None:
    metadata = project(folder)["project"]
    groups = [*metadata.get("entry-points", {}).values(), metadata.get("scripts", {})]
    for name, target in ((name, target) for group in groups for name, target in group.items()):
        module, _, attribute = target.partition(":")
        path = folder / "src" / Path(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert file.is_file(), f"{name} = {target}: there is no {file.relative_to(ROOT)}"
        assert attribute in names_of(file), f"{name} = {target}: {file.relative_to(ROOT)} has no {attribute}"


def names_of(file: Path) -> set[str]:
    """Top-level names of a file: classes, functions, assignments, imports."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def test_the_tools_know_every_package() -> None:
    tool = project(ROOT)["tool"]
    imports = {folder.name.replace("-", "_") for folder in PACKAGES}
    assert set(tool["importlinter"]["root_packages"]) == imports
    assert {Path(path).parent.name.replace("-", "_") for path in tool["mypy"]["mypy_path"].split(":")} == imports


def test_the_readme_and_the_metapackage_name_every_package() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    metadata = project(ROOT)["project"]
    named = {Requirement(line).name for line in [*metadata["dependencies"], *metadata["optional-dependencies"]["all"]]}
    assert named == {folder.name for folder in PACKAGES}
    assert [folder.name for folder in PACKAGES if f"`{folder.name}`" not in readme] == []


def test_the_development_environment_satisfies_every_declared_range() -> None:
    """A pin of requirements/dev.txt outside a package's range would test what nobody can install."""
    lines = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        requirement.name: next(iter(requirement.specifier)).version
        for requirement in (Requirement(line) for line in lines if line.strip() and not line.startswith("#"))
        if [clause.operator for clause in requirement.specifier] == ["=="]
    }
    for folder in PACKAGES:
        metadata = project(folder)["project"]
        extras = metadata.get("optional-dependencies", {}).values()
        for requirement in map(Requirement, [*metadata["dependencies"], *(line for extra in extras for line in extra)]):
            if requirement.name in pins:
                assert requirement.specifier.contains(pins[requirement.name]), f"{folder.name}: {requirement}"
