"""The star rule in sources, stubs and tests: the core imports no plugin, rank 1 the core only, rank 2 three more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
IMPORTS = sorted(path.parent.name.replace("-", "_") for path in PACKAGES.glob("*/pyproject.toml"))


RANK_2 = {"rl_marl", "rl_llm"}
UNDER_RANK_2 = {"rl_modules", "rl_objectives", "rl_collectors"}


def imported_packages(source: str) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every absolute import of a file, those inside functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]


def files_of(package: str) -> Iterator[Path]:
    folder = PACKAGES / package.replace("_", "-")
    for part in ("src", "tests"):
        yield from (path for path in sorted((folder / part).rglob("*")) if path.suffix in {".py", ".pyi"})


@pytest.mark.parametrize("package", IMPORTS)
def test_a_package_imports_no_sibling(package: str) -> None:
    forbidden = set(IMPORTS) - {package, "rl_core"} - (UNDER_RANK_2 if package in RANK_2 else set())
    found = [
        f"{file.relative_to(PACKAGES)}:{line} imports {name}"
        for file in files_of(package)
        for line, name in imported_packages(file.read_text(encoding="utf-8"))
        if name in forbidden
    ]
    assert not found, "\n".join(found)


def test_an_import_inside_a_function_is_seen() -> None:
    source = "def f():\n    from rl_envs.gym import env\n    import rl_buffers.trees\n"
    assert list(imported_packages(source)) == [(2, "rl_envs"), (3, "rl_buffers")]
