"""``CatTensors``: several observations as one vector."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Bounded, Columns, Composite, NonTensor, RowProgram, TensorSpec, Transform, Unbounded
from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.end_groups import specs_seen
from rl_envs.transforms.numpy_rows import entry_rows

__all__ = ["CatTensors"]


class CatTensors(Transform):
    """Concatenates entries into one.

    Args:
        in_keys: the entries, observations with the same dtype; default: every observation of the environment, a float
            one if any is.
        out_key: where the result goes.
        dim: the dimension to join, negative (counted from the end, so that batch and time do not matter).
        del_keys: take the entries out of the data.
        unsqueeze_if_oor: give an entry without such a dimension one, of size 1.
        sort: join in the order of the keys' names, whatever the order in ``in_keys``.

    Example:
        >>> from tensordict import TensorDict
        >>> cat = CatTensors(in_keys=["speed", "place"], out_key="state")
        >>> cat(TensorDict(speed=torch.ones(1), place=torch.zeros(2)))["state"]  # "place" comes first
        tensor([0., 0., 1.])
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_key: Key = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        super().__init__(in_keys, [out_key])
        if dim >= 0:
            raise ValueError(f"CatTensors joins a dimension counted from the end; got dim={dim}, wanted dim < 0")
        if in_keys is not None and not self.in_keys:
            raise ValueError(
                "CatTensors got no in_keys; name the entries, or leave in_keys out to take all observations"
            )
        self.dim, self.del_keys, self.unsqueeze_if_oor, self.sort = dim, del_keys, unsqueeze_if_oor, sort
        self._find_keys, self._seen = in_keys is None, -1
        self._order()

    def set_container(self, owner: object) -> None:
        """Take an owner; its observations are looked at at the first use."""
        super().set_container(owner)
        self._seen = -1

    def _order(self) -> None:
        if self.sort:
            self.in_keys = sorted(self.in_keys, key=as_path)

    def _find(self) -> None:
        seen = specs_seen(self)
        if not self._find_keys or seen is None or seen == self._seen:
            return
        parent = self.parent
        assert parent is not None  # specs_seen says so
        leaves = {as_key(as_path(key)): leaf for key, leaf in parent.observation_spec.items(True, True)}
        tensors = {key: leaf for key, leaf in leaves.items() if not isinstance(leaf, NonTensor)}
        floats = [key for key, leaf in tensors.items() if leaf.dtype is not None and leaf.dtype.is_floating_point]
        self.in_keys = floats or list(tensors)
        if not self.in_keys:
            raise KeyMissingError(f"CatTensors found no observation to join; the environment has {list(leaves)}")
        self._order()
        self._seen = seen

    # ---------------------------------------------------------------- values
    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._find()
        values = []
        for key in self.in_keys:
            value = tensordict.get(key, None)
            if value is None:
                if self._missing_ok and all(tensordict.get(other, None) is None for other in self.in_keys):
                    return tensordict
                raise KeyMissingError(self._missing(key, tensordict))
            values.append(self._widened(value, tensordict.batch_dims))
        joined = torch.cat(values, self.dim)
        if self.del_keys:
            for key in self.in_keys:
                tensordict.pop(key)
        return tensordict.set(self.out_keys[0], joined)

    def _widened(self, value: Tensor, batch_dims: int) -> Tensor:
        return value.unsqueeze(self.dim) if self.unsqueeze_if_oor and value.ndim - batch_dims < -self.dim else value

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: the root's entries and, where it has them, those under "next"."""
        self._find()
        return super().forward(tensordict)

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The joined entry instead of (or beside) its parts."""
        self._find()
        leaves = []
        for key in self.in_keys:
            leaf = observation_spec.get(key, None)
            if leaf is None:
                raise KeyMissingError(
                    f"CatTensors needs the observation {key!r}; the environment has "
                    f"{list(observation_spec.keys(True, True))}. Name the entries with in_keys=[...]"
                )
            short = self.unsqueeze_if_oor and leaf.ndim - observation_spec.ndim < -self.dim
            leaves.append(leaf.unsqueeze(self.dim) if short else leaf)
        joined = _joined(dict(zip(self.in_keys, leaves, strict=True)), self.dim)
        if self.del_keys:
            for key in self.in_keys:
                observation_spec.pop(key)
            _drop_empty(observation_spec)
        observation_spec.set(self.out_keys[0], joined)
        return observation_spec

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """One numpy call per entry."""
        self._find()
        target = after[self.out_keys[0]]
        axis, batch = self.dim, len(before.batch_size)
        parts, place = [], 0
        for key in self.in_keys:
            source = entry_rows(self, before, key)
            if self.unsqueeze_if_oor and source.ndim - 1 - batch < -axis:
                source = np.expand_dims(source, axis)
            width = source.shape[axis]
            where = [slice(None)] * target.ndim
            where[axis] = slice(place, place + width)
            parts.append((list(source), list(target[tuple(where)])))
            place += width

        def write(t: int, mask: np.ndarray | None) -> None:
            for sources, targets in parts:
                if mask is None:
                    targets[t][...] = sources[t]
                else:
                    targets[t][mask] = sources[t][mask]

        return RowProgram(lambda t: write(t + 1, None), write)


def _joined(leaves: dict[Key, TensorSpec], dim: int) -> TensorSpec:
    first_key, first = next(iter(leaves.items()))
    for key, leaf in leaves.items():
        same = leaf.ndim == first.ndim and all(
            leaf.shape[d] == first.shape[d] for d in range(leaf.ndim) if d - leaf.ndim != dim
        )
        if leaf.ndim < -dim or leaf.dtype != first.dtype or not same:
            raise SpecError(
                f"CatTensors cannot join {first_key!r} ({first.dtype}, shape {tuple(first.shape)}) and {key!r} "
                f"({leaf.dtype}, shape {tuple(leaf.shape)}) along dimension {dim}; they may differ there only. "
                "unsqueeze_if_oor=True adds the dimension where it is missing; cast or reshape entries beforehand"
            )
    shape = list(first.shape)
    shape[dim] = sum(leaf.shape[dim] for leaf in leaves.values())
    members = list(leaves.values())
    if all(isinstance(leaf, Bounded) for leaf in members):
        low, high = (
            torch.cat([getattr(leaf, end).expand(leaf.shape) for leaf in members], dim) for end in ("low", "high")
        )
        return Bounded(low=low, high=high, shape=shape, dtype=first.dtype, device=first.device)
    return Unbounded(shape=shape, dtype=first.dtype, device=first.device)


def _drop_empty(spec: Composite) -> None:
    """Take out groups that lost their last entry."""
    for name, member in list(spec.items()):
        if isinstance(member, Composite):
            _drop_empty(member)
            if member.is_empty():
                spec.pop(name)
