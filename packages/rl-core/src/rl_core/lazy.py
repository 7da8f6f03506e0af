"""Lazy public names (PEP 562), listed once in a package's ``__init__.pyi``.

``from rl_envs import GymEnv`` imports only the file that holds ``GymEnv``; type checkers and editors read the same
stub. One line of the stub publishes one name: ``from .gym.env import GymEnv as GymEnv``.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["attach"]

_WRAPPED = re.compile(r"\(\s*(\w+ as \w+),?\s*\)")  # what a formatter makes of a long line
_LINE = re.compile(r"^from (\.[\w.]*|[A-Za-z_][\w.]*) import (\w+) as (\w+)\s*(?:#.*)?$", re.MULTILINE)


def attach(package: str, init_file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Give a package the public names of its ``__init__.pyi``, each imported at its first use.

    Args:
        package: the package's ``__name__``.
        init_file: the package's ``__file__``; the stub lies beside it.

    Returns:
        ``__getattr__``, ``__dir__`` and ``__all__`` for the package's ``__init__``.
    """
    stub = Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8")
    lines = _LINE.findall(_WRAPPED.sub(r"\1", stub))
    origin = {public: (module, name) for module, name, public in lines}

    def __getattr__(public: str) -> Any:
        if public not in origin:
            raise AttributeError(f"module {package!r} has no public name {public!r}")
        module, name = origin[public]
        value = getattr(importlib.import_module(module, package), name)
        setattr(sys.modules[package], public, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*origin, "__version__"})

    return __getattr__, __dir__, sorted(origin)
