"""``TimeMaxPool``: the maximum over the last steps."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from rl_core.keys import Key
from rl_envs.transforms.frame_ring import RingTransform

__all__ = ["TimeMaxPool"]


class TimeMaxPool(RingTransform):
    """Each entry's maximum over the last T steps of its episode (fewer where it has had fewer).

    For Atari frames, in which sprites may show in every other frame only.

    Args:
        in_keys: observations; default ``["observation"]``.
        out_keys: where to write them; default: the same keys.
        T: how many steps, at least 1.
        reset_key: accepted for compatibility; which rows start anew follows from the reset.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=9), lambda td: td.set("down", -td["observation"]))
        >>> env = env.append_transform(TimeMaxPool(["down"], T=3))
        >>> env.rollout(5)["next", "down"].flatten()
        tensor([-0., -0., -1., -2., -3.])
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        T: int = 1,
        reset_key: Key | None = None,
    ) -> None:
        if T < 1:
            raise ValueError(f"T is the number of steps to pool over, at least 1; got {T}")
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys, T)
        self.T, self.reset_key = T, reset_key

    def _joined(self, frames: list[Tensor]) -> Tensor:
        return reduce(torch.maximum, frames) if len(frames) > 1 else frames[0].clone()
