"""A reference to an environment: what workers, Ray actors and configs hold instead of a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_core.registry.providers import split_env_id

__all__ = ["EnvRef"]


@dataclass(frozen=True)
class EnvRef:
    """A picklable name of an environment and its arguments; calling it builds the environment.

    Args:
        id: ``"provider:id"``, as for ``registry.envs.make``.
        kwargs: the keyword arguments; copied.

    Raises:
        UnknownNameError: ``id`` lacks its provider or its id.

    Example:
        >>> ref = EnvRef("gym:CartPole-v1", {"render_mode": "rgb_array"})
        >>> EnvRef.from_dict(ref.to_dict()) == ref
        True
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        split_env_id(self.id)
        object.__setattr__(self, "kwargs", dict(self.kwargs))

    def __hash__(self) -> int:
        # Values may be unhashable; the names alone are a hash that agrees with equality.
        return hash((self.id, frozenset(self.kwargs)))

    def make(self, **changes: Any) -> Any:
        """Build the environment; ``changes`` win over the stored arguments."""
        from rl_core import registry

        return registry.envs.make(self.id, **{**self.kwargs, **changes})

    __call__ = make

    def to_dict(self) -> dict[str, Any]:
        """The reference as plain data, for configs and JSON."""
        return {"id": self.id, "kwargs": dict(self.kwargs)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvRef:
        """The reference that :meth:`to_dict` wrote.

        Raises:
            ValueError: the data has other keys than ``id`` and ``kwargs``.
        """
        if "id" not in data or not set(data) <= {"id", "kwargs"}:
            raise ValueError(f"an EnvRef is stored as {{'id': ..., 'kwargs': {{...}}}}, got the keys {sorted(data)}")
        return cls(data["id"], data.get("kwargs") or {})
