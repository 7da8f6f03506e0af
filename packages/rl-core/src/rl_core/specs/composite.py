"""Composite: a nested dictionary of specs with a batch shape; its values are TensorDicts."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from typing_extensions import Self

from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, as_path, join
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.non_tensor import NonTensor
from rl_core.specs.shape_ops import ShapeOp, as_size

__all__ = ["Composite"]

_MISSING: Any = object()
_RESERVED = ("shape", "batch_size", "device", "dtype", "space", "names")


class Composite(TensorSpec):
    """Specs under (nested) keys; every spec's shape begins with the Composite's.

    Args:
        specs: the entries; dictionaries become Composites.
        shape: the batch shape. ``batch_size`` is another name for it.
        device: of every entry; None: entries may differ.
        names: names of the batch dimensions, given to the TensorDicts.
        **entries: more entries, by keyword.

    Example:
        >>> from rl_core import Unbounded
        >>> spec = Composite(observation=Unbounded((4, 3)), shape=(4,))
        >>> spec.rand((2,)).batch_size
        torch.Size([2, 4])
    """

    def __init__(
        self,
        specs: Mapping[Any, Any] | Composite | None = None,
        /,
        *,
        shape: Shape | None = None,
        batch_size: Shape | None = None,
        device: torch.device | str | int | None = None,
        names: Sequence[str | None] | None = None,
        **entries: Any,
    ) -> None:
        if shape is not None and batch_size is not None and as_size(shape) != as_size(batch_size):
            raise SpecError(f"Composite: shape={shape} and batch_size={batch_size} are one thing, and differ.")
        super().__init__(batch_size if shape is None else shape, None, device)
        self.device = None if device is None else self.device
        if names is not None and len(names) != self.ndim:
            raise SpecError(f"Composite: {len(names)} names for the {self.ndim} dimensions of {list(self.shape)}.")
        self.names = None if names is None else list(names)
        self.batch_ndim = self.ndim
        self._locked = False
        self._specs: dict[str, TensorSpec] = {}
        for key, spec in {**dict(specs.items() if specs is not None else ()), **entries}.items():
            self.set(key, spec)

    # Rebuilding

    def _config(self) -> dict[str, Any]:
        return {"specs": dict(self._specs), "shape": self.shape, "device": self.device, "names": self.names}

    @classmethod
    def _made(cls, config: dict[str, Any]) -> Self:
        return cls(config["specs"], **{name: value for name, value in config.items() if name != "specs"})

    def __reduce__(self) -> Any:
        """Pickle by entries; the lock is kept."""
        return (*super().__reduce__(), {"_locked": self._locked})

    def _apply(self, op: ShapeOp, n: int | None = None) -> Self:
        n = self.ndim if n is None else n
        shape = op.shape(self.shape, n)
        moved = {key: spec._apply(op, n) for key, spec in self._specs.items()}
        return self.replace(specs=moved, shape=shape, names=self.names if shape == self.shape else None)

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        """Every entry on another device or of another dtype."""
        specs = {key: spec.to(dest) for key, spec in self._specs.items()}
        return self.replace(specs=specs, device=self.device if isinstance(dest, torch.dtype) else torch.device(dest))

    def clear_device_(self) -> Self:
        """Let entries live on any device."""
        self.device = None
        for spec in self._specs.values():
            if isinstance(spec, Composite):
                spec.clear_device_()
        return self

    def map_leaves(self, change: Callable[[TensorSpec], TensorSpec]) -> Self:
        """The Composite with every leaf changed."""
        return self.replace(
            specs={k: s.map_leaves(change) if isinstance(s, Composite) else change(s) for k, s in self._specs.items()}
        )

    def make_neg_dim(self, dim: int) -> Self:
        """Make one batch dimension dynamic (-1) in every entry."""
        if not -self.ndim <= dim < self.ndim:
            raise SpecError(f"make_neg_dim: dimension {dim} is out of range for batch shape {list(self.shape)}.")
        dim %= self.ndim
        shape = torch.Size([-1 if i == dim else size for i, size in enumerate(self.shape)])
        return self.replace(specs={k: s.make_neg_dim(dim) for k, s in self._specs.items()}, shape=shape)

    # The dictionary

    def set(self, key: Key, spec: Any) -> None:
        """Set an entry; a tuple key makes the Composites on its way. A leaf is stored as a copy that knows the batch.

        Raises:
            SpecError: if the Composite is locked, or the shape or device of the spec does not fit.
        """
        self._check_unlocked(key)
        path = as_path(key)
        if not path or not all(isinstance(name, str) for name in path):
            raise SpecError(f"Composite: keys are strings or tuples of strings, found {key!r}.")
        if path[0] in _RESERVED:
            raise SpecError(f"Composite: {path[0]!r} is an attribute of every spec and cannot be a key.")
        if len(path) > 1:
            child = self._specs.get(path[0])
            if not isinstance(child, Composite):
                child = Composite(shape=self.shape, device=self.device)
            child.set(path[1:], spec)
            self._specs[path[0]] = child
            return
        self._specs[path[0]] = self._admitted(path[0], spec)

    def _admitted(self, key: str, spec: Any) -> TensorSpec:
        """The spec, expanded or marked so that it fits this Composite."""
        if isinstance(spec, Mapping):
            spec = Composite(spec, shape=self.shape, device=self.device)
        if not isinstance(spec, TensorSpec):
            raise SpecError(f"Composite: the entry {key!r} must be a spec, found {type(spec).__name__}: {spec!r}.")
        if isinstance(spec, (Composite, NonTensor)) and spec.ndim < self.ndim:
            spec = spec.expand(self.shape)
        if spec.shape[: self.ndim] != self.shape:
            raise SpecError(
                f"Composite: the entry {key!r} has the shape {list(spec.shape)}, which does not begin with the "
                f"Composite's shape {list(self.shape)}. Include the batch dimensions in the entry's shape, for example "
                f"with spec.expand({', '.join(map(str, (*self.shape, *spec.shape)))}), or drop the Composite's shape."
            )
        if self.device is not None:
            _check_device(key, spec, self.device)
        if isinstance(spec, Composite):
            return spec
        return spec if spec.batch_ndim == self.ndim else spec.replace(batch_ndim=self.ndim)

    def get(self, key: Key, default: Any = _MISSING) -> Any:
        """The entry under a (nested) key; the default, or a KeyMissingError, where there is none."""
        spec: Any = self
        for name in as_path(key):
            spec = spec._specs.get(name) if isinstance(spec, Composite) else None
            if spec is None:
                if default is _MISSING:
                    raise KeyMissingError(f"Composite has no entry {key!r}; it has {list(self.keys(True, True))}.")
                return default
        return spec

    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Remove an entry and return it."""
        self._check_unlocked(key)
        spec = self.get(key, default)
        if key in self:
            path = as_path(key)
            holder = self.get(path[:-1]) if len(path) > 1 else self
            del holder._specs[path[-1]]
        return spec

    def update(self, other: Mapping[Any, Any] | Composite) -> Self:
        """Set the entries of another Composite or dictionary; nested ones are merged."""
        for key, spec in other.items():
            own = self.get(key, None)
            if isinstance(own, Composite) and isinstance(spec, (Composite, Mapping)):
                own.update(spec)
            else:
                self.set(key, spec)
        return self

    def separates(self, *keys: Key, default: Any = _MISSING) -> Composite | None:
        """Move some entries out of this Composite into a new one; None if there are none."""
        found = [(key, self.pop(key, default)) for key in keys]
        out = Composite(shape=self.shape, device=self.device)
        for key, spec in found:
            if spec is not None:
                out.set(key, spec)
        return None if out.is_empty() else out

    def select(self, *keys: Key) -> Self:
        """A Composite of some of the entries."""
        out = self.empty()
        for key in keys:
            out.set(key, self.get(key))
        return out

    def exclude(self, *keys: Key) -> Self:
        """A Composite without some of the entries."""
        out = self.clone()
        for key in keys:
            out.pop(key, None)
        return out

    def empty(self) -> Self:
        """A Composite of the same shape and device without entries."""
        return self.replace(specs={})

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there is no entry (``recurse``: no leaf)."""
        if not recurse:
            return not self._specs
        return all(isinstance(spec, Composite) and spec.is_empty(True) for spec in self._specs.values())

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> KeysView[Any]:
        """The keys; nested ones are tuples."""
        return self._walk(include_nested, leaves_only, is_leaf).keys()

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> ItemsView[Any, TensorSpec]:
        """Pairs of key and spec."""
        return self._walk(include_nested, leaves_only, is_leaf).items()

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> ValuesView[TensorSpec]:
        """The specs."""
        return self._walk(include_nested, leaves_only, is_leaf).values()

    def _walk(self, nested: bool, leaves_only: bool, is_leaf: Callable[[type], bool] | None) -> dict[Any, TensorSpec]:
        found: dict[Any, TensorSpec] = {}
        for key, spec in self._specs.items():
            branch = isinstance(spec, Composite) and not (is_leaf is not None and is_leaf(type(spec)))
            if not (branch and leaves_only):
                found[key] = spec
            if branch and nested:
                assert isinstance(spec, Composite)
                inner = spec._walk(nested, leaves_only, is_leaf)
                found.update({join(key, name): leaf for name, leaf in inner.items()})
        return found

    def __getitem__(self, key: Any) -> Any:
        """An entry (string or tuple of strings), or the Composite with its batch dimensions indexed."""
        if isinstance(key, str) or (isinstance(key, tuple) and key and all(isinstance(k, str) for k in key)):
            return self.get(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Key, spec: Any) -> None:
        """Set an entry."""
        self.set(key, spec)

    def __delitem__(self, key: Key) -> None:
        """Remove an entry."""
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        """Whether there is an entry under the (nested) key."""
        return isinstance(key, (str, tuple)) and self.get(key, None) is not None

    def __iter__(self) -> Iterator[str]:
        """The keys, not nested."""
        return iter(list(self._specs))

    # Locks

    def lock_(self) -> Self:
        """Forbid changes of the entries, in nested Composites too."""
        return self._set_lock(True)

    def unlock_(self) -> Self:
        """Allow changes again."""
        return self._set_lock(False)

    def _set_lock(self, locked: bool) -> Self:
        self._locked = locked
        for spec in self._specs.values():
            if isinstance(spec, Composite):
                spec._set_lock(locked)
        return self

    @property
    def is_locked(self) -> bool:
        """Whether entries may not change."""
        return self._locked

    @property
    def locked(self) -> bool:
        """The same as :attr:`is_locked`."""
        return self._locked

    def _check_unlocked(self, key: Key) -> None:
        if self._locked:
            raise SpecError(
                f"Cannot modify a locked Composite (key {key!r}). Work on spec.clone(), or call unlock_() first."
            )

    # Values

    def _container(self, values: dict[str, Any], lead: torch.Size) -> TensorDict:
        names = None if self.names is None else [*[None] * len(lead), *self.names]
        size = torch.Size((*lead, *self._concrete))
        return TensorDict(values, batch_size=size, device=self.device, names=names)  # type: ignore[arg-type]

    def rand(self, shape: Shape | None = None) -> TensorDict:
        """A TensorDict of random legal values, of batch size ``[*shape, *spec.shape]``."""
        lead = as_size(shape)
        return self._container({key: spec.rand(lead) for key, spec in self._specs.items()}, lead)

    def blank(self, shape: Shape | None = None) -> TensorDict:
        """A TensorDict of zeros, whether legal or not."""
        lead = as_size(shape)
        return self._container({key: spec.blank(lead) for key, spec in self._specs.items()}, lead)

    def _constant(self, number: int, shape: Shape | None) -> TensorDict:
        lead = as_size(shape)
        return self._container({key: spec._constant(number, lead) for key, spec in self._specs.items()}, lead)

    def is_in(self, val: Any) -> bool:
        """Whether every entry of the spec is there and legal; further keys are ignored."""
        if not isinstance(val, (TensorDictBase, Mapping)):
            return False
        for key, spec in self._specs.items():
            found = val.get(key, None)
            if found is None or not spec.is_in(found):
                return False
        return True

    def project(self, val: Any) -> Any:
        """A TensorDict with every entry projected; the argument is left alone."""
        if self.is_in(val):
            return val
        out = val.copy() if isinstance(val, TensorDictBase) else dict(val)
        for key, spec in self._specs.items():
            found = val.get(key, None)
            if found is not None:
                out[key] = spec.project(found)
        return out

    def encode(self, val: Any, *, ignore_device: bool = False) -> TensorDict:
        """A nested dictionary of native values as a TensorDict; entries that are not given are left out."""
        unknown = [key for key in val if key not in self._specs]
        if unknown:
            raise SpecError(f"Composite has no entry {unknown[0]!r} to encode; it has {list(self._specs)}.")
        encoded = {key: self._specs[key].encode(val[key], ignore_device=ignore_device) for key in val}
        return TensorDict(encoded, batch_size=self._concrete, device=None if ignore_device else self.device)

    def to_numpy(self, val: Any) -> dict[str, Any]:
        """A nested dictionary of native values."""
        return {key: self._specs[key].to_numpy(val.get(key)) for key in val.keys() if key in self._specs}  # noqa: SIM118

    def explain(self, val: Any) -> str | None:
        """Why a value is not legal, in a sentence; None when it is."""
        if not isinstance(val, (TensorDictBase, Mapping)):
            return f"Composite expected a TensorDict, found {type(val).__name__}."
        for key, spec in self._specs.items():
            found = val.get(key, None)
            if found is None:
                return f"The key {key!r} is missing; expected {list(self._specs)}, found {list(val.keys())}."
            reason = spec.explain(found)
            if reason is not None:
                return f"Under {key!r}: {reason}"
        return None

    def type_check(self, val: Any, key: Any = None) -> None:
        """Raise a SpecError unless every entry that is there has its spec's dtype."""
        for name, spec in self._specs.items():
            found = val.get(name, None)
            if found is not None:
                spec.type_check(found, name if key is None else join(key, name))

    def cardinality(self) -> float | int:
        """The product over all entries."""
        return math.prod(spec.cardinality() for spec in self._specs.values())

    def enumerate(self, use_mask: bool = False) -> TensorDict:
        """All combinations of the entries' values, ``[cardinality, *shape]``."""
        parts = {key: spec.enumerate(use_mask) for key, spec in self._specs.items()}
        grids = torch.meshgrid(*[torch.arange(len(part)) for part in parts.values()], indexing="ij")
        values = {key: part[grid.reshape(-1)] for (key, part), grid in zip(parts.items(), grids, strict=True)}
        count = math.prod(len(part) for part in parts.values())
        return self._container(values, torch.Size([count]))

    def to_one_hot(self, val: Any, safe: bool | None = None) -> TensorDict:
        """Every category as a one-hot vector."""
        return self._converted("to_one_hot", val, safe)

    def to_categorical(self, val: Any, safe: bool | None = None) -> TensorDict:
        """Every one-hot vector as a category."""
        return self._converted("to_categorical", val, safe)

    def _converted(self, method: str, val: Any, safe: bool | None) -> TensorDict:
        def convert(key: str, spec: TensorSpec) -> Any:
            change = getattr(spec, method, None)
            return val.get(key) if change is None else change(val.get(key), safe)

        return TensorDict({k: convert(k, s) for k, s in self._specs.items()}, batch_size=val.batch_size)

    def to_one_hot_spec(self) -> Self:
        """The spec of :meth:`to_one_hot`'s result."""
        return self.map_leaves(lambda leaf: leaf.to_one_hot_spec() if hasattr(leaf, "to_one_hot_spec") else leaf)

    def to_categorical_spec(self) -> Self:
        """The spec of :meth:`to_categorical`'s result."""
        return self.map_leaves(
            lambda leaf: leaf.to_categorical_spec() if hasattr(leaf, "to_categorical_spec") else leaf
        )

    # Python protocol

    @property
    def batch_size(self) -> torch.Size:
        """The same as :attr:`shape`."""
        return self.shape

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.shape, frozenset((k, hash(s)) for k, s in self._specs.items())))

    def __repr__(self) -> str:
        """The entries, indented."""
        lines = [f"    {key}: {spec!r},".replace("\n", "\n    ") for key, spec in self._specs.items()]
        end = f"shape={list(self.shape)}, device={self.device})"
        return "\n".join([f"{self._name}(", *lines, f"    {end}"])


def _check_device(key: str, spec: TensorSpec, device: torch.device) -> None:
    for leaf in spec.values(True, True) if isinstance(spec, Composite) else [spec]:
        found = leaf.device or device
        other_index = None not in (found.index, device.index) and found.index != device.index
        if found.type != device.type or other_index:
            raise SpecError(f"Composite on {device}: the entry {key!r} is on {found}. Use spec.to({str(device)!r}).")
