"""Imports as repetitions: in a new interpreter, or in a fork of this one, where torch and tensordict are loaded."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable


def in_new_interpreter(module: str | None) -> Callable[[], object]:
    """A repetition starts Python and imports a module (None: nothing, which is what the start itself costs)."""
    code = "pass" if module is None else f"import {module}"
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def in_fork(module: str | None) -> Callable[[], object]:
    """A repetition forks, imports a module in the child (None: nothing) and waits for the child's end."""
    import tensordict  # noqa: F401  # with it torch, so that neither is part of a repetition

    def run() -> None:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if module is not None:
                    importlib.import_module(module)
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(f"importing {module} failed in a child process")

    return run
