"""``DoubleToFloat``: float32 outside of environments that compute in float64."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rl_core.keys import Key
from rl_envs.transforms.dtype_cast import DTypeCastTransform

__all__ = ["DoubleToFloat"]


class DoubleToFloat(DTypeCastTransform):
    """Casts float64 observations and rewards to float32, and float32 actions back to float64.

    Bounds of an action are rounded inwards, so that every float32 action is legal in float64.

    Args:
        in_keys: observations and rewards to cast; default: every one that is float64.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: actions (and states) that the environment wants in float64; default: every one that is float64.
        out_keys_inv: what the policy writes for them; default: the same keys.

    Example:
        >>> from tensordict import TensorDict
        >>> DoubleToFloat(in_keys=["x"])(TensorDict(x=torch.zeros(2, dtype=torch.float64)))["x"].dtype
        torch.float32
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)
