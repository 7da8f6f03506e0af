"""Every name that a package publishes can be imported from the package's root, and importing the root is cheap."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
IMPORTS = sorted(path.parent.name.replace("-", "_") for path in PACKAGES.glob("*/pyproject.toml"))


@pytest.mark.parametrize("package", IMPORTS)
def test_every_public_name_is_importable_from_the_root(package: str) -> None:
    module = importlib.import_module(package)
    missing = {}
    for name in module.__all__:
        try:
            getattr(module, name)
        except (ImportError, AttributeError) as error:
            missing[name] = str(error)
    assert not missing


@pytest.mark.parametrize("package", IMPORTS)
def test_every_name_of_the_stub_is_published(package: str) -> None:
    """``rl_core.lazy`` reads a name per line: one that a formatter wrapped would be lost without a word."""
    stub = PACKAGES / package.replace("_", "-") / "src" / package / "__init__.pyi"
    imports = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    assert names - set(importlib.import_module(package).__all__) == set()


@pytest.mark.parametrize("package", IMPORTS)
def test_no_public_name_is_hidden_by_a_submodule(package: str) -> None:
    """Once ``package.evaluate`` is imported as a module, ``from package import evaluate`` is that module."""
    source = PACKAGES / package.replace("_", "-") / "src" / package
    modules = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    both = sorted(modules & set(importlib.import_module(package).__all__))
    meant = {name: importlib.import_module(f"{package}.{name}") for name in both}
    assert [name for name, module in meant.items() if getattr(module, name, None) is not module] == []


@pytest.mark.parametrize("package", IMPORTS)
def test_importing_a_package_loads_neither_torch_nor_tensordict(package: str) -> None:
    code = f"import sys, {package}; print(*sorted({{'torch', 'tensordict', 'numpy'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
