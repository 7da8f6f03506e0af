"""The key map of a loss or an estimator: the entries it reads and writes, each under a name that a user may rename."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, as_key, as_path, join

__all__ = ["KeyedModule", "entry", "missing_key", "quoted"]

_SHOWN_KEYS = 16


def entry(*, producer: str = "", under_next: bool = False) -> dict[str, Any]:
    """What a key map says of an entry beside its default key: ``field(default="reward", metadata=entry(...))``.

    Args:
        producer: who usually writes the entry, as a sentence for the error when it is missing.
        under_next: the entry lies under "next", which is not repeated in the key.

    Returns:
        The metadata of a dataclass field.
    """
    return {"producer": producer, "under_next": under_next}


def quoted(key: Key) -> str:
    """A key as a user would type it.

    >>> quoted("reward"), quoted(("next", "reward"))
    ('"reward"', '("next", "reward")')
    """
    path = as_path(key)
    return json.dumps(path[0]) if len(path) == 1 else f"({', '.join(json.dumps(name) for name in path)})"


def missing_key(owner: str, key: Key, batch: TensorDictBase, cure: str) -> KeyMissingError:
    """The error for an entry that a batch lacks.

    Args:
        owner: who needs it, e.g. ``"ClipPPOLoss"`` or ``"ClipPPOLoss (critic_network)"``.
        key: what is missing.
        batch: the batch that lacks it; its keys are listed.
        cure: one or two sentences on what to do.

    Returns:
        The error, to be raised.
    """
    present = [as_key(found) for found in batch.keys(include_nested=True, leaves_only=True)]
    by_text = [quoted(found) for found in present]
    near = difflib.get_close_matches(quoted(key), by_text, n=1, cutoff=0.75)
    shown = sorted(by_text, key=lambda text: (text.startswith("("), text))
    listed = ", ".join(shown[:_SHOWN_KEYS]) + (", ..." if len(shown) > _SHOWN_KEYS else "")
    guess = f" Did you mean {near[0]}?" if near else ""
    found = listed or "no entries"
    return KeyMissingError(f"{owner} needs {quoted(key)}; the batch has {found}.{guess} {cure}".rstrip())


class KeyedModule(nn.Module):
    """A module with a key map: ``tensor_keys``, ``set_keys`` and reading with an error that helps.

    A subclass sets ``default_keys`` to an instance of a frozen dataclass of keys (see :func:`entry`), and ``call_me``
    to the name by which users call such an object (``"loss"``, ``"gae"``).
    """

    default_keys: ClassVar[Any]
    call_me: ClassVar[str] = "module"

    def __init__(self) -> None:
        super().__init__()
        self._tensor_keys = self.default_keys
        self._paths: dict[str, Key] = {}
        self._resolve_paths()

    @property
    def tensor_keys(self) -> Any:
        """The key map in force: one attribute per name."""
        return self._tensor_keys

    @classmethod
    def key_names(cls) -> list[str]:
        """The names that :meth:`set_keys` accepts."""
        return [field.name for field in dataclasses.fields(cls.default_keys)]

    def set_keys(self, **keys: Key | None) -> None:
        """Rename entries.

        Args:
            **keys: a key per name; None means the default again.

        Raises:
            SpecError: there is no such name.
        """
        for name in keys:
            self._check_name(name)
        changes = {name: getattr(self.default_keys, name) if key is None else as_key(key) for name, key in keys.items()}
        self._tensor_keys = dataclasses.replace(self._tensor_keys, **changes)
        self._resolve_paths()

    def path(self, name: str) -> Key:
        """Where in a batch the entry of this name lies, "next" included.

        Raises:
            SpecError: there is no such name.
        """
        found = self._paths.get(name)
        if found is None:
            self._check_name(name)
        return self._paths[name]

    def read(self, batch: TensorDictBase, name: str) -> Tensor:
        """The entry of this name.

        Raises:
            KeyMissingError: the batch lacks it; the text names the key, its usual producer and the cure.
        """
        value = batch.get(self._paths[name], None)
        if value is None:
            raise self.missing(batch, name)
        return value

    def missing(self, batch: TensorDictBase, name: str) -> KeyMissingError:
        """The error for a missing entry of this name."""
        producer = self._field(name).metadata.get("producer", "")
        cure = f"{producer} Rename with {self.call_me}.set_keys({name}=...).".lstrip()
        return missing_key(type(self).__name__, self._paths[name], batch, cure)

    def _check_name(self, name: str) -> None:
        names = self.key_names()
        if name in names:
            return
        near = difflib.get_close_matches(name, names, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"{type(self).__name__} has no key named {name!r}.{guess} It has {_listed(names)}.")

    def _field(self, name: str) -> dataclasses.Field[Any]:
        return next(field for field in dataclasses.fields(self.default_keys) if field.name == name)

    def _resolve_paths(self) -> None:
        for field in dataclasses.fields(self.default_keys):
            key = getattr(self._tensor_keys, field.name)
            nested = field.metadata.get("under_next", False) and as_path(key)[0] != "next"
            self._paths[field.name] = join("next", key) if nested else as_key(key)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
