"""``Transform``: rewrites named fields between an environment (or a buffer) and whoever reads it.

On the way out of an environment, ``_step`` sees what goes under "next" and ``_reset`` the first observations; on the
way in, ``_inv_call`` sees the action. In a buffer, ``forward`` runs at sampling and ``inv`` at writing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.envs.columns import Columns, RowProgram
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_keys
from rl_core.specs import Composite

if TYPE_CHECKING:
    from rl_core.envs.base import EnvBase

__all__ = ["Transform"]


class Transform(nn.Module):
    """Base of all transforms.

    A subclass that maps one entry to another defines ``_apply_transform(value)`` (and ``_inv_apply_transform(value)``);
    one that needs more defines ``_call(tensordict)``, or ``_step`` and ``_reset`` themselves. By default both a step's
    and a reset's observations go through ``_call``.

    Args:
        in_keys: entries read from what the environment wrote.
        out_keys: entries written; default: the same keys.
        in_keys_inv: entries the environment reads, written by the inverse.
        out_keys_inv: entries the policy writes, read by the inverse; default: the same keys.
    """

    invertible: bool = False

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__()
        self.in_keys = as_keys(in_keys)
        self.out_keys = list(self.in_keys) if out_keys is None else as_keys(out_keys)
        self.in_keys_inv = as_keys(in_keys_inv)
        self.out_keys_inv = list(self.in_keys_inv) if out_keys_inv is None else as_keys(out_keys_inv)
        self._missing_ok = False
        self._owner: weakref.ReferenceType[Any] | None = None
        if len(self.in_keys) != len(self.out_keys) and type(self)._call is Transform._call:
            raise ValueError(
                f"{type(self).__name__} got {len(self.in_keys)} in_keys and {len(self.out_keys)} out_keys; "
                "give one out key for each in key"
            )

    # ---------------------------------------------------------------- to be written by a subclass
    def _apply_transform(self, value: Tensor) -> Tensor:
        """One entry on its way out: ``[*B, ...] -> [*B, ...]``."""
        raise NotImplementedError(f"{type(self).__name__} must define _apply_transform or _call")

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        """One entry on its way in."""
        raise NotImplementedError(f"{type(self).__name__} must define _inv_apply_transform or _inv_call")

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """All entries on their way out; writes the out keys and returns the TensorDict."""
        for key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            value = tensordict.get(key, None)
            if value is not None:
                tensordict.set(out_key, self._apply_transform(value))
            elif not self._missing_ok:
                raise KeyMissingError(self._missing(key, tensordict))
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """What a step wrote: ``tensordict`` is time t (read only), ``next_tensordict`` time t + 1."""
        return self._call(next_tensordict)

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        """What a reset wrote, for all rows; rows that were not asked for are thrown away afterwards.

        A transform with a state of its own reads ``reset_rows(tensordict)`` and leaves the other rows of that state
        alone.
        Entries that a reset does not have (rewards) are skipped.
        """
        self._missing_ok = True
        try:
            return self._call(tensordict_reset)
        finally:
            self._missing_ok = False

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """All entries on their way in; writes ``in_keys_inv`` from ``out_keys_inv`` and returns the TensorDict."""
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            value = tensordict.get(out_key, None)
            if value is None:
                raise KeyMissingError(self._missing(out_key, tensordict))
            tensordict.set(key, self._inv_apply_transform(value))
        return tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """What a reset is asked for, on its way in; the TensorDict given is left as it is."""
        return tensordict

    def _instead_of_step(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        """What a step of the environment before this transform would write, where it is not to be stepped; else None.

        Called after ``_inv_call``, with what it returned.
        """
        return None

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec after this transform."""
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The (full) reward spec after this transform."""
        return reward_spec

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The (full) done spec after this transform."""
        return done_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The (full) action spec that the policy sees."""
        return action_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec after this transform."""
        return state_spec

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The environment's batch size after this transform."""
        return batch_size

    def transform_env_batch_locked(self, batch_locked: bool) -> bool:
        """Whether the environment's batch size is fixed after this transform."""
        return batch_locked

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Whether :meth:`row_program` works, so that a collector needs no TensorDict per step.

        True by itself for a transform that only defines ``_apply_transform`` and ``_inv_apply_transform``.
        """
        cls = type(self)
        untouched = (cls._call, cls._step, cls._reset, cls._inv_call) == (
            Transform._call,
            Transform._step,
            Transform._reset,
            Transform._inv_call,
        )
        return untouched

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Bind this transform to the columns before and after it (the same arrays where a leaf stays as it is)."""
        from rl_core.transforms.rows import entrywise_program

        return entrywise_program(self, before, after)

    # ---------------------------------------------------------------- stored data
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: the root's entries and, where it has them, those under "next"."""
        self._missing_ok = True
        try:
            found = any(tensordict.get(key, None) is not None for key in self.in_keys)
            tensordict = self._call(tensordict)
            nxt = tensordict.get("next", None)
            if nxt is not None and any(nxt.get(key, None) is not None for key in self.in_keys):
                found = True
                tensordict.set("next", self._call(nxt))
        finally:
            self._missing_ok = False
        if self.in_keys and not found:
            raise KeyMissingError(self._missing(self.in_keys[0], tensordict))
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase | None:
        """Data on its way into a buffer; the TensorDict given is left as it is.

        Returns:
            What is to be stored, possibly other rows than those given; None: nothing (yet).
        """
        return self._inv_call(tensordict.copy()) if self.in_keys_inv else tensordict

    # ---------------------------------------------------------------- ownership
    @property
    def container(self) -> EnvBase | None:
        """The environment this transform belongs to, if any."""
        owner = None if self._owner is None else self._owner()
        return owner.container if isinstance(owner, Transform) else owner

    @property
    def parent(self) -> EnvBase | None:
        """The environment as it is before this transform: the base environment and the transforms ahead of this one."""
        from rl_core.transforms.transformed_env import environment_before

        return environment_before(self)

    def set_container(self, owner: Any) -> None:
        """Make an environment or a Compose the owner of this transform; it may have only one."""
        current = None if self._owner is None else self._owner()
        if current is not None and owner is not None and current is not owner:
            raise EnvError(
                f"this {type(self).__name__} already belongs to a {type(current).__name__}; a transform may carry "
                "state, so it has one owner: pass transform.clone()"
            )
        self._owner = None if owner is None else weakref.ref(owner)

    def dump(self, suffix: str | None = None, step: int | None = None) -> Any:
        """Write out what the transform recorded; most record nothing.

        Args:
            suffix: joined to the record's name.
            step: frames trained so far.
        """
        return None

    def close(self) -> None:
        """Give up what the transform holds (processes, files); its environment calls this when it is closed."""

    def clone(self) -> Transform:
        """A copy with its own state and no owner."""
        import copy

        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_owner"] = None
        return state

    def _missing(self, key: Key, tensordict: TensorDictBase) -> str:
        present = ", ".join(repr(k) for k in tensordict.keys(True, True)) or "nothing"
        return f"{type(self).__name__} needs {key!r}; the data has {present}. Name the entry with in_keys=[...]"

    def to_device_of(self, value: Tensor, like: Tensor) -> Tensor:
        """A parameter of this transform on the device of the data."""
        return value if value.device == like.device else value.to(like.device)
