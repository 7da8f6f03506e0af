"""``FlattenAction``: the policy writes a vector where the environment reads a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, Composite, RowProgram, Transform
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.transforms.entry_map import inward_program

__all__ = ["FlattenAction"]


class FlattenAction(Transform):
    """Merges neighbouring dimensions of an action for the policy, ``[*B, ..., X, Y] -> [*B, ..., X * Y]``.

    Args:
        first_dim: the first of the dimensions, counted from the end.
        last_dim: the last of them, counted from the end.
        in_keys_inv: the environment's actions; default ``["action"]``.
        out_keys_inv: what the policy writes for them; default: the same keys.
        in_keys: entries of stored data to flatten at sampling.
        out_keys: where to write them; default: the same keys.
        allow_positive_dim: accept dimensions counted from the beginning (batch dimensions count).
        action_shape: the sizes of the merged dimensions, where there is no environment to tell them.

    Example:
        >>> FlattenAction(action_shape=(2, 3))._inv_apply_transform(torch.arange(6)).shape
        torch.Size([2, 3])
    """

    invertible = True

    def __init__(
        self,
        first_dim: int = -2,
        last_dim: int = -1,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        allow_positive_dim: bool = False,
        *,
        action_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, ["action"] if in_keys_inv is None else in_keys_inv, out_keys_inv)
        if not allow_positive_dim and (first_dim >= 0 or last_dim >= 0):
            raise ValueError(
                f"FlattenAction got the dimensions {first_dim} to {last_dim}; count them from the end (-1 is the "
                "last), so that batch and time do not matter, or pass allow_positive_dim=True"
            )
        self.first_dim, self.last_dim = first_dim, last_dim
        self._sizes = None if action_shape is None else torch.Size(action_shape)
        wanted = last_dim - first_dim + 1 if (first_dim < 0) == (last_dim < 0) else None
        if self._sizes is not None and wanted is not None and len(self._sizes) != wanted:
            raise ValueError(f"FlattenAction got action_shape={tuple(self._sizes)} for {wanted} dimensions")

    def _merged(self, shape: torch.Size) -> torch.Size:
        first, last = self.first_dim % len(shape), self.last_dim % len(shape)
        if not first < last:
            raise EnvError(
                f"FlattenAction({self.first_dim}, {self.last_dim}) has nothing to merge in an action of shape "
                f"{tuple(shape)}"
            )
        return shape[first : last + 1]

    def _split(self) -> torch.Size:
        if self._sizes is None:
            parent = self.parent
            leaf = None if parent is None else parent.full_action_spec.get(self.in_keys_inv[0], None)
            if leaf is None:
                raise EnvError(
                    "FlattenAction needs the shape of an environment's action; append it to one, or give it "
                    "action_shape=(...)"
                )
            self._sizes = self._merged(leaf.shape)
        return self._sizes

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.flatten(self.first_dim, self.last_dim)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        sizes = self._split()
        place = self.first_dim if self.first_dim >= 0 else self.last_dim
        return value.unflatten(place, sizes)

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The merged shape."""
        for key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            leaf = action_spec.get(key, None)
            if leaf is None:
                raise EnvError(
                    f"FlattenAction needs the action {key!r}; the environment has "
                    f"{list(action_spec.keys(True, True))}. Name it with in_keys_inv=[...]"
                )
            if self._merged(leaf.shape) != self._split():
                raise EnvError(
                    f"the actions of this FlattenAction have different shapes: {key!r} merges "
                    f"{tuple(self._merged(leaf.shape))}, another {tuple(self._split())}; append one FlattenAction for "
                    "each"
                )
            if out_key != key:
                action_spec.pop(key)
            action_spec.set(out_key, leaf.flatten(self.first_dim, self.last_dim))
        return action_spec

    @property
    def supports_rows(self) -> bool:
        """Where dimensions are counted from the end, as rows have none in front."""
        return self.first_dim < 0 and self.last_dim < 0

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """The inverse alone."""
        return inward_program(self, before, after)
