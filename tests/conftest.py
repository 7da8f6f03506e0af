"""Fixtures for the tests of what the repository works with."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of ``tools/`` by name; they are forgotten afterwards, since their names are plain words."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(TOOLS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(str(getattr(sys.modules[name], "__file__", ""))).parent == TOOLS:
            del sys.modules[name]
