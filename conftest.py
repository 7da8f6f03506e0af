"""What pytest leaves alone: an example is a script, so importing it (as ``--doctest-modules`` would) runs it."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent / "examples"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip scripts of ``examples/``; its test files are collected as usual."""
    script = collection_path.suffix == ".py" and not collection_path.name.startswith(("test_", "conftest"))
    return True if script and EXAMPLES in collection_path.parents else None
