"""Lazy public names (PEP 562), listed once in a package's ``__init__.pyi``.

``from rl_envs import GymEnv`` imports only the file that holds ``GymEnv``; type checkers and editors read the same
stub. One statement of the stub publishes one name: ``from .gym.env import GymEnv as GymEnv``.

Every ``import rl_core`` pays for this file, so it imports neither ``re`` nor ``typing`` nor ``pathlib`` (20 ms).
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["attach"]


def attach(package: str, init_file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Give a package the public names of its ``__init__.pyi``, each imported at its first use.

    Args:
        package: the package's ``__name__``.
        init_file: the package's ``__file__``; the stub lies beside it.

    Returns:
        ``__getattr__``, ``__dir__`` and ``__all__`` for the package's ``__init__``.
    """
    stem = init_file.rpartition(".")[0]
    with open(f"{stem}.pyi", encoding="utf-8") as stub:
        origin = published(stub.read())

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


def published(stub: str) -> dict[str, tuple[str, str]]:
    r"""The names that a stub publishes, with the module and the name that each comes from.

    A formatter may have wrapped a long statement in parentheses.

    >>> published("from .a import B as C  # why\nfrom .d import (\n    E as F,\n)\nx: str\n")
    {'C': ('.a', 'B'), 'F': ('.d', 'E')}
    """
    origin: dict[str, tuple[str, str]] = {}
    for statement in stub.replace("(\n", " ").replace("\n)", "").splitlines():
        words = statement.partition("#")[0].replace(",", " ").split()
        if len(words) == 6 and words[::2] == ["from", "import", "as"]:
            origin[words[5]] = (words[1], words[3])
    return origin
