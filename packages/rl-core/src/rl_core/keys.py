"""Keys: the names of a TensorDict's entries, plain (``"reward"``) or nested (``("agents", "reward")``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

__all__ = [
    "END_NAMES",
    "Key",
    "as_key",
    "as_keys",
    "as_path",
    "flat_name",
    "join",
    "leaf_name",
    "parent_path",
    "sibling",
]

Key: TypeAlias = "str | tuple[str, ...]"

END_NAMES = ("done", "terminated", "truncated")
"""The leaf names that end flags may have, at the root or in any group."""


def as_path(key: Key) -> tuple[str, ...]:
    """The key as a tuple of names.

    >>> as_path("reward"), as_path(("agents", "reward"))
    (('reward',), ('agents', 'reward'))
    """
    return (key,) if isinstance(key, str) else tuple(key)


def as_key(path: Sequence[str] | str) -> Key:
    """The shortest form of a path: a string when it has one name.

    >>> as_key(("reward",)), as_key(("agents", "reward"))
    ('reward', ('agents', 'reward'))
    """
    if isinstance(path, str):
        return path
    return path[0] if len(path) == 1 else tuple(path)


def as_keys(keys: Key | Iterable[Key] | None) -> list[Key]:
    """A list of keys, whether one key (a string), several, or none was given.

    A tuple of strings is one nested key only inside a list: ``["a", ("b", "c")]``; on its own it is read as a list of
    plain keys, as users write ``in_keys=("a", "b")``.

    >>> as_keys("a"), as_keys(["a", ("b", "c")]), as_keys(None)
    (['a'], ['a', ('b', 'c')], [])
    """
    if keys is None:
        return []
    if isinstance(keys, str):
        return [keys]
    return [as_key(key) for key in keys]


def join(*parts: Key) -> Key:
    """One key from several.

    >>> join("next", ("agents", "reward"))
    ('next', 'agents', 'reward')
    """
    # as_path and as_key, written out: losses join keys at every call.
    names = [name for part in parts for name in ((part,) if isinstance(part, str) else part)]
    return names[0] if len(names) == 1 else tuple(names)


def leaf_name(key: Key) -> str:
    """The last name of a key.

    >>> leaf_name(("agents", "reward"))
    'reward'
    """
    return as_path(key)[-1]


def parent_path(key: Key) -> tuple[str, ...]:
    """All names but the last.

    >>> parent_path(("agents", "reward")), parent_path("reward")
    (('agents',), ())
    """
    return as_path(key)[:-1]


def sibling(key: Key, name: str) -> Key:
    """The key with the same parents and another last name.

    >>> sibling(("agents", "done"), "truncated")
    ('agents', 'truncated')
    """
    return as_key((*parent_path(key), name))


def flat_name(key: Key, separator: str = "_") -> str:
    """The key as one name, as in keyword calls and log files.

    >>> flat_name(("next", "reward"))
    'next_reward'
    """
    return separator.join(as_path(key))
