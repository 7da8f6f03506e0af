"""The group ``envs``: environments by ``"provider:id"``."""

from __future__ import annotations

from typing import Any

from rl_core.errors import RLError
from rl_core.registry import errors_text
from rl_core.registry.group import Group
from rl_core.registry.providers import EnvProvider, split_env_id

__all__ = ["EnvGroup"]


class EnvGroup(Group):
    """Providers by name, and environments by ``"provider:id"``.

    Example:
        >>> from rl_core import registry
        >>> class Rooms:
        ...     def make(self, id, **kwargs): return (id, kwargs)
        ...     def ids(self): return ["one-v0", "two-v0"]
        ...     def describe(self, id): return f"{id}: a room"
        >>> with registry.isolated(entry_points=[]):
        ...     registry.envs.register("rooms", Rooms)
        ...     registry.envs.make("rooms:one-v0", size=3), registry.envs.ids("rooms")
        (('one-v0', {'size': 3}), ['one-v0', 'two-v0'])
    """

    def provider(self, name: str) -> EnvProvider:
        """The provider of that name (or ``"dist/name"``)."""
        found: EnvProvider = self.get(name)
        return found

    def make(self, env: str, /, **kwargs: Any) -> Any:
        """Build an environment.

        Args:
            env: ``"gym:CartPole-v1"``, or ``"my-dist/gym:CartPole-v1"`` where two distributions offer ``gym``.
            **kwargs: handed to the provider's ``make``.

        Raises:
            UnknownNameError: no such provider, or no such id in it.
            PluginError: the provider cannot be used (see :meth:`get`).
        """
        name, id = split_env_id(env)
        provider = self.provider(name)
        try:
            return provider.make(id, **kwargs)
        except RLError:
            raise
        except ModuleNotFoundError as error:
            raise errors_text.missing_module(f"the provider {name!r} of {self.owner(name)}", error.name) from error
        except Exception as error:
            if _speaks_of_an_unknown_id(error, id) and id not in (ids := provider.ids()):
                raise errors_text.unknown_id(name, id, ids, said=error) from error
            raise

    def ids(self, provider: str) -> list[str]:
        """Every id of a provider."""
        return list(self.provider(provider).ids())

    def describe(self, name: str) -> Any:
        """What the provider says of ``"provider:id"``; for a provider's name, its description."""
        if ":" not in name:
            return super().describe(name)
        provider_name, id = split_env_id(name)
        provider = self.provider(provider_name)
        try:
            return provider.describe(id)
        except RLError:
            raise
        except Exception as error:
            if id not in (ids := provider.ids()):
                raise errors_text.unknown_id(provider_name, id, ids, said=error) from error
            raise


def _speaks_of_an_unknown_id(error: Exception, id: str) -> bool:
    """Whether the error is a look-up that failed, by its type's name or its words: not a bad keyword, nor a crash.

    Libraries have no common class for it: gymnasium raises NameNotFound (an Exception), dm_control ValueError.
    """
    names = " ".join(cls.__name__ for cls in type(error).__mro__)
    if "NotFound" in names or "Unregistered" in names:
        return True
    return isinstance(error, LookupError | ValueError) and id.rpartition("/")[2].partition("-v")[0] in str(error)
