"""What all tests share: the seed each of them begins with, and what pytest leaves alone.

Left alone are scripts, which importing (as ``--doctest-modules`` would) runs, and adapters of JAX.

JAX is no part of the everyday environment; the adapters' tests are in ``tests-heavy``.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent / "examples"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip scripts of ``examples/``; its test files are collected as usual."""
    if collection_path.name == "jax_envs" and find_spec("jax") is None:
        return True
    script = collection_path.suffix == ".py" and not collection_path.name.startswith(("test_", "conftest"))
    return True if script and EXAMPLES in collection_path.parents else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each test the same draws in every run, in any order, alone or among others."""
    torch.manual_seed(0)
