"""What the group ``envs`` holds: providers, each of which makes the environments of one library by id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rl_core.registry.errors_text import malformed_env_id

__all__ = ["EnvProvider", "split_env_id"]


@runtime_checkable
class EnvProvider(Protocol):
    """Makes the environments of one library; ``gym`` in ``"gym:CartPole-v1"``.

    An entry point of ``rl_core.envs`` names a class, built without arguments at its first use, or an object. It imports
    its library inside the methods, and raises :func:`rl_core.registry.missing_extra` where that is not installed.

    Example:
        >>> class OneEnv:
        ...     def make(self, id, **kwargs): return f"the env {id}"
        ...     def ids(self): return ["only-v0"]
        ...     def describe(self, id): return "The only one."
        >>> isinstance(OneEnv(), EnvProvider)
        True
    """

    def make(self, id: str, **kwargs: Any) -> Any:
        """Build the environment ``id``."""
        ...

    def ids(self) -> list[str]:
        """Every id that is known without building anything."""
        ...

    def describe(self, id: str) -> Mapping[str, Any] | str:
        """What the environment is: a text, or named facts."""
        ...


def split_env_id(text: str) -> tuple[str, str]:
    """Provider and id of ``"provider:id"`` or ``"dist/provider:id"``; only the first colon separates.

    Raises:
        UnknownNameError: one of the two is missing.

    Example:
        >>> split_env_id("gym:ALE/Pong-v5"), split_env_id("my-dist/gym:CartPole-v1")
        (('gym', 'ALE/Pong-v5'), ('my-dist/gym', 'CartPole-v1'))
    """
    provider, colon, id = text.partition(":")
    if not (provider and colon and id):
        raise malformed_env_id(text)
    return provider, id
