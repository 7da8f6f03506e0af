"""``set_gym_backend`` and ``gym_backend``: compatibility with programs that choose between gym and gymnasium.

Gymnasium is the only library behind the adapters, so nothing is switched; what asks for another one is told the way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ContextDecorator
from types import ModuleType
from typing import Any

from rl_core.errors import EnvError
from rl_envs.gym.library import gymnasium

__all__ = ["check_backend", "gym_backend", "set_gym_backend"]


class set_gym_backend(ContextDecorator):  # noqa: N801 (the name is the field's)
    """Says which library :class:`GymEnv` uses: gymnasium. A context manager, a decorator, or ``.set()``.

    Args:
        backend: "gymnasium", the module, or a function that returns it.

    Raises:
        EnvError: another library.

    Example:
        >>> with set_gym_backend("gymnasium"):
        ...     gym_backend().__name__
        'gymnasium'
    """

    def __init__(self, backend: str | ModuleType | Callable[[], ModuleType]) -> None:
        self.backend = check_backend(backend)

    def set(self) -> None:
        """Keep gymnasium, from now on."""

    def __enter__(self) -> set_gym_backend:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None


def gym_backend(submodule: str | None = None) -> Any:
    """The library that :class:`GymEnv` makes environments with, gymnasium, or one of its modules.

    Args:
        submodule: the name of the module, with or without "gymnasium" in front.

    Example:
        >>> gym_backend("wrappers").__name__
        'gymnasium.wrappers'
    """
    if submodule is None:
        return gymnasium
    name = submodule.removeprefix("gymnasium").lstrip(".")
    return importlib.import_module(f"gymnasium.{name}" if name else "gymnasium")


def check_backend(backend: Any) -> ModuleType:
    """Refuse any library but gymnasium.

    Raises:
        EnvError: another library was asked for.
    """
    if callable(backend):
        backend = backend()
    name = backend.__name__ if isinstance(backend, ModuleType) else backend
    if name not in (None, "gymnasium"):
        raise EnvError(
            f"the gym backend {name!r} is not supported: adapters stand on gymnasium >= 1.1. Environments of gym are "
            "made through it: pip install 'shimmy[gym-v26]', then GymEnv('GymV26Environment-v0', env_id='...')"
        )
    return gymnasium
