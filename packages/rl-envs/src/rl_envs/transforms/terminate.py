"""``TerminateTransform``: ends episodes where a condition says that the task is over."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Transform
from rl_core.keys import as_key
from rl_envs.transforms.end_groups import EndKeys, groups_before, specs_seen
from rl_envs.transforms.masked_rows import as_rows

__all__ = ["TerminateTransform"]


class TerminateTransform(Transform):
    """``terminated |= stop(td)`` and ``done |= stop(td)`` after every step, at the root and in every group.

    Args:
        stop: a function of what a step wrote to a bool, or a bool tensor ``[*B]`` or ``[*B, 1]``.
        write_done: True; ``done`` is always ``terminated | truncated``.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=9), TerminateTransform(lambda td: td["observation"] >= 3))
        >>> env.rollout(9).shape
        torch.Size([3])
    """

    def __init__(self, stop: Callable[[TensorDictBase], bool | Tensor], *, write_done: bool = True) -> None:
        super().__init__()
        if not write_done:
            raise ValueError(
                "TerminateTransform(write_done=False) is not supported: done is terminated | truncated, always. To "
                "mark steps without ending episodes, write an observation: UnaryTransform"
            )
        self.stop = stop
        self._groups: list[EndKeys] = []
        self._seen: int | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner; its end flags are read at the first use."""
        super().set_container(owner)
        self._groups, self._seen = [], None

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        rows = as_rows(self.stop(next_tensordict), next_tensordict, "the condition of TerminateTransform")
        seen = specs_seen(self)
        if seen != self._seen or not self._groups:
            self._groups, self._seen = groups_before(self), seen
        for group in self._groups:
            for name in ("terminated", "done"):
                key = as_key((*group.prefix, name))
                flag = next_tensordict.get(key)
                next_tensordict.set(key, flag | rows.reshape(*rows.shape, *(1,) * (flag.ndim - rows.ndim)))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored end flags are data, and stay as they were stored."""
        return tensordict
