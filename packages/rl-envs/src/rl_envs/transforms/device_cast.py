"""``DeviceCastTransform``: data on another device than the environment's."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, Composite, RowProgram, TensorSpec, Transform
from rl_core.keys import Key
from rl_envs.transforms.entry_transform import map_leaves

__all__ = ["DeviceCastTransform"]


class DeviceCastTransform(Transform):
    """Moves what the environment writes to a device, and what it reads back.

    With keys named, only these entries move, and the container's device is None. Without, everything does.

    Args:
        device: where data go.
        orig_device: where the environment wants its actions; default: the environment's device, or the CPU.
        in_keys: entries to move; default: all.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: entries that the environment reads; default: all.
        out_keys_inv: what the policy writes for them; default: the same keys.

    Example:
        >>> from tensordict import TensorDict
        >>> DeviceCastTransform("cpu")(TensorDict(x=torch.zeros(2))).device
        device(type='cpu')
    """

    def __init__(
        self,
        device: torch.device | str | int,
        orig_device: torch.device | str | int | None = None,
        *,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.device = torch.device(device)
        self._orig_device = None if orig_device is None else torch.device(orig_device)
        self._all_out, self._all_in = in_keys is None, in_keys_inv is None

    @property
    def orig_device(self) -> torch.device:
        """Where the environment wants its actions."""
        if self._orig_device is not None:
            return self._orig_device
        parent = self.parent
        return torch.device("cpu") if parent is None or parent.device is None else parent.device

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.device, non_blocking=self.device.type == "cuda")

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.orig_device)

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._all_out:
            return tensordict.to(self.device)
        return super()._call(tensordict.copy().clear_device_() if tensordict.device is not None else tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._all_in:
            return tensordict.to(self.orig_device)
        return super()._inv_call(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: everything, or the named entries at the root and under "next"."""
        return tensordict.to(self.device) if self._all_out else super().forward(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Data on its way into a buffer go to ``orig_device``."""
        return self._inv_call(tensordict.copy())

    # ---------------------------------------------------------------- specs
    def _moved(self, spec: Composite) -> Composite:
        if self._all_out:
            return spec.to(self.device)
        return map_leaves(spec, self.in_keys, self.out_keys, self._on_device)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """On the device."""
        return self._moved(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """On the device."""
        return self._moved(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """On the device."""
        return self._moved(done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The policy writes on the device."""
        return self._received(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The policy writes on the device."""
        return self._received(state_spec)

    def _received(self, spec: Composite) -> Composite:
        if self._all_in:
            return spec.to(self.device)
        return map_leaves(spec, self.in_keys_inv, self.out_keys_inv, self._on_device, move=True)

    def _on_device(self, leaf: TensorSpec) -> TensorSpec:
        return leaf.to(self.device)

    @property
    def supports_rows(self) -> bool:
        """Where nothing moves: rows are the CPU's."""
        return self.device.type == "cpu" and self.orig_device.type == "cpu" and self._same_keys()

    def _same_keys(self) -> bool:
        return self.in_keys == self.out_keys and self.in_keys_inv == self.out_keys_inv

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Nothing to do."""
        return RowProgram(lambda t: None, lambda t, mask: None)
