"""``Compose``: transforms in a row, the first one nearest to the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_core.errors import EnvError, RLError
from rl_core.specs import Composite
from rl_core.transforms.base import Transform
from rl_core.transforms.callable import as_transform

__all__ = ["Compose"]


class Compose(Transform):
    """Several transforms as one.

    Args:
        *transforms: in the order in which the environment's output passes them.
        transforms: the same as a list.

    Example:
        >>> len(Compose(Transform(), Transform()))
        2
    """

    def __init__(
        self,
        *args: Transform | Callable[[TensorDictBase], TensorDictBase],
        transforms: Iterable[Transform | Callable[[TensorDictBase], TensorDictBase]] | None = None,
    ) -> None:
        super().__init__()
        given = list(args) if transforms is None else [*args, *transforms]
        if len(given) == 1 and isinstance(given[0], (list, tuple)):
            given = list(given[0])
        parts = [as_transform(transform) for transform in given]
        for place, part in enumerate(parts):
            _refuse_twice(part, parts[:place])
            part.set_container(self)
        self.transforms = nn.ModuleList(parts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy owns its copies."""
        super().__setstate__(state)
        parts: list[Transform] = list(self)
        for part in parts:
            part.set_container(self)

    def append(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Add a transform at the end, nearest to the policy."""
        return self.insert(len(self.transforms), transform)

    def insert(self, index: int, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> Compose:
        """Add a transform at a place; negative places count from the end."""
        size = len(self.transforms)
        if not -size <= index <= size:
            raise IndexError(f"place {index} in a Compose of {size} transforms; places are {-size} to {size}")
        added = as_transform(transform)
        _refuse_twice(added, list(self))
        added.set_container(self)
        place = index if index >= 0 else index + size
        self.transforms.insert(place, added)
        try:
            self._changed()
        except RLError:  # the environment refuses it: nothing was edited
            del self.transforms[place]
            added.set_container(None)
            raise
        return self

    def extend(self, transforms: Iterable[Transform | Callable[[TensorDictBase], TensorDictBase]]) -> Compose:
        """Add transforms at the end."""
        for transform in transforms:
            self.append(transform)
        return self

    def pop(self, index: int = -1) -> Transform:
        """Remove a transform and return it; it is free for another owner."""
        removed = self[index]
        del self.transforms[index]
        removed.set_container(None)
        self._changed()
        return removed

    def _changed(self) -> None:
        container = self.container
        if container is not None:
            container.specs_changed()

    def __getitem__(self, index: int | slice) -> Transform:
        """The transform at a place; of a slice, a new Compose of copies (each transform has one owner)."""
        if isinstance(index, slice):
            return Compose(*[transform.clone() for transform in list(self)[index]])
        if not -len(self) <= index < len(self):
            raise IndexError(f"no transform at place {index}; this Compose has {len(self)}")
        return list(self)[index]

    def __delitem__(self, index: int) -> None:
        self.pop(index)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.transforms)

    def dump(self, suffix: str | None = None, step: int | None = None) -> None:
        """Let every transform write out what it recorded."""
        for transform in self:
            transform.dump(suffix=suffix, step=step)

    def close(self) -> None:
        """Close every transform."""
        for transform in self:
            transform.close()

    # ---------------------------------------------------------------- data
    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for transform in self:
            tensordict = transform._call(tensordict)
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for transform in self:
            next_tensordict = transform._step(tensordict, next_tensordict)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for transform in self:
            tensordict_reset = transform._reset(tensordict, tensordict_reset)
        return tensordict_reset

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        for transform in reversed(list(self)):
            tensordict = transform._reset_env_preprocess(tensordict)
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for transform in reversed(list(self)):
            tensordict = transform._inv_call(tensordict)
        return tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data through every transform."""
        for transform in self:
            tensordict = transform(tensordict)
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        """Data on its way into a buffer, through every inverse from the last to the first."""
        result: TensorDictBase | None = tensordict
        for transform in reversed(list(self)):
            if result is None:
                return None
            result = transform.inv(result)
        return result

    # ---------------------------------------------------------------- specs
    def _each(self, method: str, spec: Composite) -> Composite:
        for transform in self:
            spec = getattr(transform, method)(spec)
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec after all transforms."""
        return self._each("transform_observation_spec", observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec after all transforms."""
        return self._each("transform_reward_spec", reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done spec after all transforms."""
        return self._each("transform_done_spec", done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec that the policy sees."""
        return self._each("transform_action_spec", action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec after all transforms."""
        return self._each("transform_state_spec", state_spec)

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The batch size after all transforms."""
        for transform in self:
            batch_size = transform.transform_env_batch_size(batch_size)
        return batch_size

    def transform_env_batch_locked(self, batch_locked: bool) -> bool:
        """Whether the batch size is fixed after all transforms."""
        for transform in self:
            batch_locked = transform.transform_env_batch_locked(batch_locked)
        return batch_locked

    @property
    def supports_rows(self) -> bool:
        """Whether every transform has a row program."""
        return all(transform.supports_rows for transform in self)


def _refuse_twice(transform: Transform, others: Iterable[Transform]) -> None:
    if any(other is transform for other in others):
        raise EnvError(
            f"this {type(transform).__name__} is in the Compose already; a transform may carry state, so it has one "
            "place: pass transform.clone()"
        )
