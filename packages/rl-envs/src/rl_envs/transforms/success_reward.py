"""``SuccessReward``: a reward where the environment reports success, and nowhere else."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Bounded, Columns, Composite, RowProgram, Transform
from rl_core.errors import KeyMissingError
from rl_core.keys import Key, as_key, as_path, join
from rl_envs.transforms.numpy_rows import entry_rows

__all__ = ["SuccessReward"]


class SuccessReward(Transform):
    """``reward = scale`` where the flag holds after the step, else 0; whatever the environment's reward was.

    Args:
        success_key: the flag, an observation ``[*B]`` or ``[*B, 1]``.
        reward_key: the reward that is written.
        scale: the reward of success.
    """

    def __init__(self, success_key: Key = "success", reward_key: Key = "reward", *, scale: float = 1.0) -> None:
        super().__init__()
        self.in_keys, self.out_keys = [as_key(as_path(success_key))], [as_key(as_path(reward_key))]
        self.scale = scale

    def _reward(self, success: Tensor, batch_dims: int) -> Tensor:
        flag = success.unsqueeze(-1) if success.ndim == batch_dims else success
        return flag.to(torch.float32) * self.scale

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        success = next_tensordict.get(self.in_keys[0], None)
        if success is None:
            raise KeyMissingError(self._text(self.in_keys[0], next_tensordict))
        return next_tensordict.set(self.out_keys[0], self._reward(success, next_tensordict.batch_dims))

    def _text(self, key: Key, tensordict: TensorDictBase) -> str:
        present = ", ".join(map(repr, tensordict.keys(True, True))) or "nothing"
        return f"SuccessReward needs {key!r}; the data has {present}. Name the flag: success_key=..."

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored steps: the reward under "next" from the flag there."""
        key = join("next", self.in_keys[0])
        success = tensordict.get(key, None)
        if success is None:
            raise KeyMissingError(self._text(key, tensordict))
        return tensordict.set(join("next", self.out_keys[0]), self._reward(success, tensordict.batch_dims))

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Between 0 and ``scale``."""
        parent = self.parent
        flag = None if parent is None else parent.observation_spec.get(self.in_keys[0], None)
        if parent is not None and flag is None:
            raise KeyMissingError(
                f"SuccessReward needs the observation {self.in_keys[0]!r}; the environment has "
                f"{', '.join(map(repr, parent.observation_keys))}. Name the flag: success_key=..."
            )
        old = reward_spec.get(self.out_keys[0], None)
        like = flag if flag is not None else old
        shape = (*like.shape, 1) if like.ndim == reward_spec.ndim else like.shape
        low, high = min(0.0, self.scale), max(0.0, self.scale)
        reward_spec.set(
            self.out_keys[0], Bounded(low=low, high=high, shape=shape, dtype=torch.float32, device=like.device)
        )
        return reward_spec

    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """One numpy call."""
        flag, reward, scale = entry_rows(self, before, self.in_keys[0]), after[self.out_keys[0]], self.scale
        flag = flag.reshape(len(flag), *reward.shape[1:])

        def step(t: int) -> None:
            np.multiply(flag[t + 1], scale, out=reward[t], casting="unsafe")

        def reset(t: int, mask: np.ndarray | None) -> None:
            """A reset has no reward."""

        return RowProgram(step, reset)
