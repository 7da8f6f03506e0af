"""``AutoResetEnv``: a simulator that resets itself, seen as one that is reset."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_core import Compose, Transform, TransformedEnv, reset_rows
from rl_core.envs.base import EnvBase
from rl_core.envs.ends import any_done, complete_ends
from rl_core.errors import EnvError

__all__ = ["AutoResetEnv", "AutoResetTransform"]


class AutoResetTransform(Transform):
    """Keeps what a self-resetting simulator returns at an end for the reset that follows.

    That is the first observation of the next episode. The transform works in an :class:`AutoResetEnv`.

    Args:
        replace: put fill values under "next" in the rows that ended, whose last observation is lost (True, the
            default), or leave the first observation of the next episode there (False: nothing says that it is not the
            last).
        fill_float: the fill value of floats.
        fill_int: of integers (the largest one where they are unsigned).
        fill_bool: of flags.
    """

    def __init__(
        self,
        *,
        replace: bool | None = None,
        fill_float: float | str = "nan",
        fill_int: int = -1,
        fill_bool: bool = False,
    ) -> None:
        super().__init__()
        self.replace = True if replace is None else replace
        self.fill_float = float(fill_float)
        self.fill_int, self.fill_bool = fill_int, fill_bool
        self._rows: torch.Tensor | None = None
        self._first: TensorDictBase | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner.

        Raises:
            EnvError: it is a TransformedEnv that resets its simulator.
        """
        if isinstance(owner, TransformedEnv) and not isinstance(owner, AutoResetEnv):
            raise EnvError("AutoResetTransform works in AutoResetEnv(env), which leaves resets to the simulator")
        super().set_container(owner)

    def _fill(self, dtype: torch.dtype) -> float:
        if dtype is torch.bool:
            return self.fill_bool
        if dtype.is_floating_point or dtype.is_complex:
            return self.fill_float
        return torch.iinfo(dtype).max if not dtype.is_signed and self.fill_int < 0 else self.fill_int

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        env = self.parent
        assert env is not None  # set_container says so
        self._rows = rows = any_done(next_tensordict, env.end_groups, next_tensordict.batch_dims)
        if rows is None:
            return next_tensordict
        self._first = next_tensordict.select(*env.observation_keys).copy()
        for key in env.observation_keys if self.replace else ():
            value = next_tensordict.get(key)
            if isinstance(value, torch.Tensor):
                mask = rows.reshape(*rows.shape, *(1,) * (value.ndim - rows.ndim))
                next_tensordict.set(key, value.masked_fill(mask, self._fill(value.dtype)))
        return next_tensordict

    def given(self, rows: torch.Tensor | None) -> TensorDictBase | None:
        """The first observations of rows ``[*B]`` (None: all), where the simulator gave them, and only once."""
        held, first = self._rows, self._first
        if held is None or first is None:
            return None
        asked = torch.ones_like(held) if rows is None else rows
        if bool((asked & ~held).any()):
            return None
        left = held & ~asked
        self._rows = left if bool(left.any()) else None
        return TensorDict(dict(first.items()), batch_size=first.batch_size, device=first.device)

    def forget(self) -> None:
        """The simulator was reset from outside."""
        self._rows = self._first = None


class AutoResetEnv(TransformedEnv):
    """An environment whose simulator resets itself at the end of an episode.

    A reset of rows that have just ended gives the observations that the simulator returned at their end, without
    calling it; any other reset does call it. An ``EnvBase`` of your own can say so itself: ``MyEnv(auto_reset=True)``.

    Args:
        env: the environment; its own ``auto_reset`` is False.
        transform: default ``AutoResetTransform()``. Further transforms are appended to the result.
    """

    def __init__(self, env: EnvBase, transform: AutoResetTransform | None = None) -> None:
        if env.auto_reset:
            raise EnvError(f"this {type(env).__name__} was made with auto_reset=True already; use it as it is")
        super().__init__(env, Compose(AutoResetTransform() if transform is None else transform))

    def _own_transform(self) -> AutoResetTransform:
        first = self.transform[0] if isinstance(self.transform, Compose) and len(self.transform) else self.transform
        if not isinstance(first, AutoResetTransform):
            raise EnvError("the first transform of an AutoResetEnv is its AutoResetTransform; append others after it")
        return first

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        own = self._own_transform()
        given = None if kwargs else own.given(reset_rows(tensordict))
        if given is None:
            own.forget()
            return super()._reset(tensordict, **kwargs)
        given = complete_ends(given, self.base.end_groups, batch_locked=self.batch_locked)
        for transform in list(self.transform)[1:]:  # type: ignore[call-overload]
            given = transform._reset(tensordict, given)
        return given
