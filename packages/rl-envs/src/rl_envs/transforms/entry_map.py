"""``EntryMap``: transforms of single entries that write rows in numpy, with no tensor operation per step."""

from __future__ import annotations

import numpy as np

from rl_core import Columns, Composite, RowProgram, TensorSpec, Transform
from rl_envs.transforms.entry_transform import EntryTransform, map_leaves
from rl_envs.transforms.numpy_rows import entry_program, entry_rows

__all__ = ["EntryMap", "inward_program"]


class EntryMap(EntryTransform):
    """Beside the map of a tensor and of a spec, a subclass defines that of a numpy row, in place.

    ``_write(source, target)`` is ``_apply_transform``, ``_write_back`` is ``_inv_apply_transform``; a subclass without
    them has its rows mapped as tensors. ``_map_spec_inward`` is the spec of what the policy writes.
    """

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        return leaf

    def _map_spec_inward(self, leaf: TensorSpec) -> TensorSpec:
        return leaf

    def _write(self, source: np.ndarray, target: np.ndarray) -> None:
        raise NotImplementedError

    def _write_back(self, source: np.ndarray, target: np.ndarray) -> None:
        raise NotImplementedError

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """What the policy writes."""
        return map_leaves(action_spec, self.in_keys_inv, self.out_keys_inv, self._map_spec_inward, move=True)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The same for states that the environment reads."""
        return map_leaves(state_spec, self.in_keys_inv, self.out_keys_inv, self._map_spec_inward, move=True)

    @property
    def supports_rows(self) -> bool:
        """Where its parameters are on the CPU."""
        held = [*self.buffers(), *self.parameters()]
        return super().supports_rows and all(tensor.device.type == "cpu" for tensor in held)

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """In numpy where the subclass has that, else by tensors on the rows' memory."""
        cls = type(self)
        outward_known = cls._write is not EntryMap._write or not self.in_keys
        inward_known = cls._write_back is not EntryMap._write_back or not self.in_keys_inv
        if not (outward_known and inward_known):
            return super().row_program(before, after)
        outward = [(key, out, self._write) for key, out in zip(self.in_keys, self.out_keys, strict=True)]
        inward = [(key, out, self._write_back) for key, out in zip(self.in_keys_inv, self.out_keys_inv, strict=True)]
        for key, out, _ in inward:
            entry_rows(self, before, key)
            entry_rows(self, after, out)
        return entry_program(self, before, after, outward, inward)


def inward_program(transform: Transform, before: Columns, after: Columns) -> RowProgram:
    """Rows of a transform of actions alone, by ``_inv_apply_transform`` on their memory."""
    pairs = []
    for key, out in zip(transform.in_keys_inv, transform.out_keys_inv, strict=True):
        entry_rows(transform, before, key)
        entry_rows(transform, after, out)
        pairs.append((after.tensors[out], before.tensors[key]))

    def step(t: int) -> None:
        """A step's results stay as they are."""

    def reset(t: int, mask: np.ndarray | None) -> None:
        """So do a reset's."""

    def inverse(t: int) -> None:
        for source, target in pairs:
            target[t] = transform._inv_apply_transform(source[t])

    return RowProgram(step, reset, inverse)
