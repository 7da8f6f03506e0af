"""``Stack``: several entries as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Columns, Composite, RowProgram, Transform
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_key, as_keys, as_path
from rl_envs.transforms.numpy_rows import entry_rows

__all__ = ["Stack"]


class Stack(Transform):
    """Stacks entries of one shape along a new dimension, and takes apart what the policy stacked.

    Args:
        in_keys: entries to stack, all of one shape and dtype.
        out_key: where the stack goes.
        in_key_inv: a stacked entry that the policy writes.
        out_keys_inv: the entries that the environment reads, its parts in this order.
        dim: the new dimension in the stack, negative.
        allow_positive_dim: a dimension from 0 on counts those after the batch.
        del_keys: take the in keys away.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(left=torch.zeros(2, 3), right=torch.ones(2, 3), batch_size=[2])
        >>> Stack(["left", "right"], "both", dim=-2)(data)["both"].shape
        torch.Size([2, 2, 3])
    """

    def __init__(
        self,
        in_keys: Iterable[Key],
        out_key: Key,
        in_key_inv: Key | None = None,
        out_keys_inv: Iterable[Key] | None = None,
        dim: int = -1,
        allow_positive_dim: bool = False,
        *,
        del_keys: bool = True,
    ) -> None:
        super().__init__(in_keys, [out_key])
        if not self.in_keys:
            raise ValueError("Stack needs the entries to stack: Stack(in_keys=[...], out_key=...)")
        if dim >= 0 and not allow_positive_dim:
            raise ValueError(
                f"dim={dim} counts from the front, where batch dimensions stand; count from the end (negative), or "
                "give allow_positive_dim=True to count the dimensions after the batch"
            )
        if (in_key_inv is None) != (out_keys_inv is None):
            raise ValueError(
                "Stack takes both in_key_inv (what the policy writes) and out_keys_inv (its parts), or none"
            )
        self.dim, self.del_keys = dim, del_keys
        self.stacked_key = None if in_key_inv is None else as_key(as_path(in_key_inv))
        # The contract's names: in_keys_inv are what the environment reads, out_keys_inv what the policy writes.
        self.in_keys_inv = as_keys(out_keys_inv)
        self.out_keys_inv = [] if self.stacked_key is None else [self.stacked_key]

    def _at(self, ndim: int, lead: int) -> int:
        """The new dimension, for parts of so many dimensions."""
        return self.dim if self.dim < 0 else self.dim + lead - (ndim + 1)

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        values = [tensordict.get(key, None) for key in self.in_keys]
        absent = [key for key, value in zip(self.in_keys, values, strict=True) if value is None]
        if absent:
            if self._missing_ok and len(absent) == len(values):
                return tensordict
            raise KeyMissingError(self._missing(absent[0], tensordict))
        _check_alike([(key, tuple(v.shape)) for key, v in zip(self.in_keys, values, strict=True)])
        stacked = torch.stack(values, self._at(values[0].ndim, tensordict.batch_dims))
        if self.del_keys:
            for key in self.in_keys:
                tensordict.pop(key)
        return tensordict.set(self.out_keys[0], stacked)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.stacked_key is None:
            return tensordict
        value = tensordict.get(self.stacked_key, None)
        if value is None:
            raise KeyMissingError(self._missing(self.stacked_key, tensordict))
        dim = self._at(value.ndim - 1, tensordict.batch_dims)
        if value.shape[dim] != len(self.in_keys_inv):
            raise EnvError(
                f"Stack takes {self.stacked_key!r} apart into {self.in_keys_inv}: its dimension {dim} must have size "
                f"{len(self.in_keys_inv)}, the shape is {tuple(value.shape)}"
            )
        for key, part in zip(self.in_keys_inv, value.unbind(dim), strict=True):
            tensordict.set(key, part)
        return tensordict

    # ---------------------------------------------------------------- specs
    def _stack_specs(self, spec: Composite, keys: Sequence[Key], out_key: Key, remove: bool) -> Composite:
        leaves = [spec.get(key, None) for key in keys]
        if not keys or any(leaf is None for leaf in leaves):
            return spec
        _check_alike([(key, tuple(leaf.shape)) for key, leaf in zip(keys, leaves, strict=True)])
        stacked: Any = torch.stack(leaves, self._at(leaves[0].ndim, spec.ndim) + leaves[0].ndim + 1)
        if remove:
            for key in keys:
                spec.pop(key)
        spec.set(out_key, stacked)
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The stack, in place of the in keys."""
        return self._stack_specs(observation_spec, self.in_keys, self.out_keys[0], self.del_keys)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The same for rewards."""
        return self._stack_specs(reward_spec, self.in_keys, self.out_keys[0], self.del_keys)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The stacked action."""
        return self._stack_specs(action_spec, self.in_keys_inv, self.stacked_key or "", True)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The stacked state."""
        return self._stack_specs(state_spec, self.in_keys_inv, self.stacked_key or "", True)

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Where observations or rewards alone are stacked."""
        return self.stacked_key is None

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Each part is copied into its place."""
        sources = [entry_rows(self, before, key) for key in self.in_keys]
        target = after[self.out_keys[0]]
        dim = self._at(sources[0].ndim - 1, len(before.batch_size))
        parts = list(np.moveaxis(target, dim, 0))
        pairs = list(zip(sources, parts, strict=True))
        carried = self.in_keys[0] in before.carried
        shift = int(carried)

        def step(t: int) -> None:
            for source, part in pairs:
                part[t + shift] = source[t + shift]

        def reset(t: int, mask: np.ndarray | None) -> None:
            if not carried:
                return
            for source, part in pairs:
                if mask is None:
                    part[t] = source[t]
                else:
                    part[t][mask] = source[t][mask]

        return RowProgram(step, reset)


def _check_alike(shapes: Sequence[tuple[Key, tuple[int, ...]]]) -> None:
    if len({shape for _, shape in shapes}) > 1:
        raise EnvError(f"Stack takes entries of one shape; they have {dict(shapes)}")
