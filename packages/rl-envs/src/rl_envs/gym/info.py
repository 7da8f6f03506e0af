"""Readers of ``info``: which of a simulator's extra values become entries of the TensorDict, and of which form.

Keys of ``info`` come and go: absent at a reset, there at the end of an episode only. An entry is therefore declared,
with a spec and a value that stands for its absence, and it is written at every step.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_core import Binary, Categorical, Composite, NonTensor, TensorSpec, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path

__all__ = ["BaseInfoDictReader", "InfoEntry", "default_info_dict_reader"]

_PLAIN = (bool, int, float, str, np.ndarray, np.generic)  # what is read without being asked for by name
_OF_VECTORS = ("final_obs", "final_info", "final_observation")  # what vector environments write beside the infos


@dataclass(frozen=True)
class InfoEntry:
    """One entry that is read from ``info``.

    Attributes:
        key: its key in the TensorDict.
        path: names that lead to it in ``info``.
        spec: of one environment.
        default: what is written where ``info`` does not have it.
        present: the key of the flag that says whether it was there, or None.
    """

    key: Key
    path: tuple[str, ...]
    spec: TensorSpec
    default: Any
    present: Key | None = None


class BaseInfoDictReader(ABC):
    """Takes what it wants from an ``info`` and writes it into a TensorDict; handed to ``set_info_dict_reader``.

    A subclass says which entries it writes (:attr:`info_spec`) and writes them (:meth:`__call__`). What a call leaves
    out has its spec's zero.

    Example:
        >>> class Lives(BaseInfoDictReader):
        ...     @property
        ...     def info_spec(self):
        ...         return {"lives": Unbounded(shape=(), dtype=torch.int64)}
        ...     def __call__(self, info_dict, tensordict):
        ...         return tensordict.set("lives", info_dict.get("lives", 0))
        >>> Lives()({"lives": 3}, TensorDict())["lives"]
        tensor(3)
    """

    @property
    @abstractmethod
    def info_spec(self) -> Mapping[Any, TensorSpec] | Composite:
        """The entries' specs, of one environment: by key, or a Composite."""

    @abstractmethod
    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Write the entries of one environment's ``info`` into a TensorDict without batch dimensions."""

    @property
    def entries(self) -> list[InfoEntry]:
        """The declared entries."""
        specs: Any = self.info_spec
        leaves = specs.items(True, True) if isinstance(specs, Composite) else specs.items()
        return [InfoEntry(as_key(as_path(key)), (), spec, _zero(spec)) for key, spec in leaves]

    def values(self, info: dict[str, Any]) -> dict[Key, Any]:
        """The entries of one environment's ``info``, by key."""
        written = self(info, TensorDict({}, batch_size=[]))
        return {as_key(as_path(key)): _native(written.get(key)) for key in written.keys(True, True)}

    def learn(self, infos: Sequence[Mapping[str, Any]]) -> None:
        """Look at the infos of a few steps before the entries are asked for."""


class default_info_dict_reader(BaseInfoDictReader):  # noqa: N801 (the name is the field's)
    """Reads values of ``info`` by name.

    Args:
        keys: the names; a tuple leads into nested dicts. None reads every number, array and text that a short trial
            shows (``set_info_dict_reader`` makes it).
        spec: the specs of one environment's values: a sequence in the order of ``keys``, or a mapping (a Composite)
            by name. Names without a spec get one from the trial.
        ignore_private: leave out names that begin with an underscore.
        defaults: values that stand for an absence, by name; otherwise the zero of the spec (of a mask: all allowed).
        presence: write beside each entry ``"<name>_present"``, bool, whether ``info`` had it.
        warn_undeclared: warn once of every name that ``info`` has and nobody declared; by default where ``keys`` is
            None.

    ``action_mask`` is taken as bool and has no presence flag, so that random actions and masked policies can use it.

    Example:
        >>> reader = default_info_dict_reader(["score"], spec=[Unbounded(shape=(), dtype=torch.float32)])
        >>> reader.values({}), reader.values({"score": 7.0})
        ({'score': tensor(0.), 'score_present': False}, {'score': 7.0, 'score_present': True})
    """

    def __init__(
        self,
        keys: Iterable[Any] | None = None,
        spec: Sequence[TensorSpec] | Mapping[Any, TensorSpec] | Composite | None = None,
        ignore_private: bool = True,
        *,
        defaults: Mapping[Any, Any] | None = None,
        presence: bool = True,
        warn_undeclared: bool | None = None,
    ) -> None:
        self.ignore_private, self.presence = ignore_private, presence
        declared = _declared(keys, spec)
        self.open = keys is None and not declared
        self.warn_undeclared = self.open if warn_undeclared is None else warn_undeclared
        self.specs: dict[Key, TensorSpec | None] = declared
        self.defaults = {as_key(as_path(key)): value for key, value in (defaults or {}).items()}
        unknown = [key for key in self.defaults if key not in declared and not self.open]
        if unknown:
            raise EnvError(f"defaults has {unknown[0]!r}, which is not among the keys {list(declared)}")
        self._seen: set[str] = {str(as_path(key)[0]) for key in declared} | set(_OF_VECTORS)

    # ---------------------------------------------------------------- what it declares
    @property
    def info_spec(self) -> dict[Any, TensorSpec]:
        """The entries' specs by key, flags of presence included."""
        specs: dict[Any, TensorSpec] = {}
        for entry in self.entries:
            specs[entry.key] = entry.spec
            if entry.present is not None:
                specs[entry.present] = Categorical(2, shape=(), dtype=torch.bool)
        return specs

    @property
    def entries(self) -> list[InfoEntry]:
        """The declared entries.

        Raises:
            EnvError: a name has no spec yet.
        """
        return [self._entry(key, spec) for key, spec in self.specs.items()]

    def _entry(self, key: Key, spec: TensorSpec | None) -> InfoEntry:
        if spec is None:
            raise EnvError(
                f"the info {key!r} has no spec, and a short trial did not show it (it may come at an episode's end "
                f"only); declare it: default_info_dict_reader([{key!r}], spec=[Unbounded(shape=(), dtype="
                "torch.float32)])"
            )
        path = as_path(key)
        if path[-1] == "action_mask":
            mask = Binary(shape=spec.shape, dtype=torch.bool)
            return InfoEntry(key, path, mask, self.defaults.get(key, torch.ones(spec.shape, dtype=torch.bool)))
        present = as_key((*path[:-1], f"{path[-1]}_present")) if self.presence else None
        return InfoEntry(key, path, spec, self.defaults.get(key, _zero(spec)), present)

    def learn(self, infos: Sequence[Mapping[str, Any]]) -> None:
        """Take names (where none were given) and missing specs from the infos of a few steps."""
        shown: dict[Key, list[Any]] = {}
        for info in infos:
            for path, value in _leaves(info, self.ignore_private):
                shown.setdefault(as_key(path), []).append(value)
        for key, values in shown.items():
            self._seen.add(str(as_path(key)[0]))
            wanted = self.open and key not in self.specs and all(isinstance(value, _PLAIN) for value in values)
            if wanted or (key in self.specs and self.specs[key] is None):
                self.specs[key] = _spec_of(key, values)

    # ---------------------------------------------------------------- reading
    def __call__(self, info_dict: dict[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        """Write every declared entry."""
        for key, value in self.values(info_dict).items():
            spec = self.specs.get(key)
            tensordict.set(key, value if spec is None else spec.encode(value))
        return tensordict

    def values(self, info: dict[str, Any]) -> dict[Key, Any]:
        """Every declared entry of one environment's ``info``, and whether it was there."""
        self.notice(info)
        found: dict[Key, Any] = {}
        for entry in self.entries:
            value = lookup(info, entry.path)
            found[entry.key] = entry.default if value is ABSENT else value
            if entry.present is not None:
                found[entry.present] = value is not ABSENT
        return found

    def notice(self, info: Mapping[str, Any]) -> None:
        """Warn once of each name that nobody declared."""
        if not self.warn_undeclared or info.keys() <= self._seen:
            return
        new = sorted(str(name) for name in info.keys() - self._seen)
        self._seen.update(new)
        told = [name for name in new if not (self.ignore_private and name.startswith("_"))]
        if told:
            warnings.warn(
                f"info has {', '.join(map(repr, told))}, which no reader declares, so it is left out; declare it with "
                "its spec: env.set_info_dict_reader(default_info_dict_reader([name, ...], spec=[...]))",
                stacklevel=2,
            )


ABSENT: Any = object()


def lookup(info: Any, path: Sequence[str]) -> Any:
    """The value that names lead to, or ABSENT."""
    for name in path:
        if not isinstance(info, Mapping) or name not in info:
            return ABSENT
        info = info[name]
    return info


def _declared(keys: Iterable[Any] | None, spec: Any) -> dict[Key, TensorSpec | None]:
    """The specs by key; None where none was given."""
    names = None if keys is None else [as_key(as_path(key)) for key in ([keys] if isinstance(keys, str) else keys)]
    if isinstance(spec, Composite):
        spec = dict(spec.items(True, True))
    if isinstance(spec, Mapping):
        given: dict[Key, TensorSpec | None] = {as_key(as_path(key)): value for key, value in spec.items()}
        return given if names is None else {key: given.get(key) for key in names}
    if spec is None:
        return dict.fromkeys(names or [])
    specs = list(spec)
    if names is None or len(specs) != len(names):
        raise EnvError(
            f"{len(specs)} specs for {'no' if names is None else len(names)} keys; give one spec for each key, in "
            "their order, or a mapping from key to spec"
        )
    return dict(zip(names, specs, strict=True))


def _leaves(info: Mapping[str, Any], ignore_private: bool, path: tuple[str, ...] = ()) -> Iterable[Any]:
    for name, value in info.items():
        if ignore_private and str(name).startswith("_"):
            continue
        if not path and name in _OF_VECTORS:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, ignore_private, (*path, str(name)))
        else:
            yield (*path, str(name)), value


def _spec_of(key: Key, values: Sequence[Any]) -> TensorSpec:
    """The spec of values that were seen: the common dtype of numbers; anything else is kept as an object."""
    arrays = [
        np.asarray(value) if isinstance(value, (int, float, np.ndarray, np.generic)) else None for value in values
    ]
    numbers = [array for array in arrays if array is not None and array.dtype.kind in "biuf"]
    if len(numbers) < len(arrays):
        return NonTensor(example_data=values[0])
    shapes = {array.shape for array in numbers}
    if len(shapes) > 1:
        raise EnvError(
            f"the info {key!r} has several shapes: {', '.join(map(str, sorted(shapes)))}; leave it out, or read it "
            "with a BaseInfoDictReader of your own that gives it one"
        )
    dtype = np.result_type(*numbers)
    shape = shapes.pop()
    if dtype == np.bool_:
        return Categorical(2, shape=shape, dtype=torch.bool)
    if all(isinstance(value, float) and not isinstance(value, np.generic) for value in values):
        dtype = np.dtype(np.float32)  # Python's floats are double for no reason of the simulator's
    return Unbounded(shape=shape, dtype=torch.from_numpy(np.empty(0, dtype=dtype)).dtype)


def _zero(spec: TensorSpec) -> Any:
    return spec.example_data if isinstance(spec, NonTensor) else spec.zero()


def _native(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else getattr(value, "data", value)
